"""A text game that a small model learns in a minute: find the coin in a house of rooms with closed doors.

The game is stateful, so that a forked episode replays the moves before the fork.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence

from whetstone.chat import Message, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.environments import Observation, StepResult
from whetstone.seeding import derive_random
from whetstone.trajectory import CallRecord, EndReason, Score, Task, Trajectory

SIDE = 4
MOVES = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
GO = ToolSpec(
    "go",
    "Walk through a door.",
    {"type": "object", "properties": {"direction": {"type": "string"}}, "required": ["direction"]},
)
Room = tuple[int, int]


class House:
    """Rooms on a grid, a third of the doors closed.

    Args:
        name: Id of the task, which determines the house: `house/SEED` has the coin three to six moves away;
            `house/SIDE/FEWEST-MOST/SEED` specifies size and distance.
    """

    def __init__(self, name: str) -> None:
        draw = random.Random(name)
        _, *parts, _ = name.split("/")
        side = int(parts[0]) if parts else SIDE
        fewest, most = map(int, parts[1].split("-")) if parts else (3, 6)
        while True:
            rooms = [(x, y) for x in range(side) for y in range(side)]
            walls = [(a, b) for a in rooms for b in rooms if a < b and abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1]
            self.open = {frozenset(wall) for wall in walls if draw.random() < 2 / 3}
            self.start, self.coin = draw.sample(rooms, 2)
            path = self.path(self.start)
            if path is not None and fewest <= len(path) <= most:
                return

    def doors(self, room: Room) -> dict[str, Room]:
        """Return direction → next room, for open doors."""
        neighbors = {name: (room[0] + x, room[1] + y) for name, (x, y) in MOVES.items()}
        return {name: other for name, other in neighbors.items() if frozenset((room, other)) in self.open}

    def path(self, room: Room) -> list[str] | None:
        """Return the shortest path to the coin, or None."""
        ways: dict[Room, list[str]] = {room: []}
        queue = deque([room])
        while queue:
            room_here = queue.popleft()
            if room_here == self.coin:
                return ways[room_here]
            for name, other in self.doors(room_here).items():
                if other not in ways:
                    ways[other] = [*ways[room_here], name]
                    queue.append(other)
        return None

    def seen(self, room: Room) -> str:
        """Return the description of a room."""
        right, up = self.coin[0] - room[0], self.coin[1] - room[1]
        far = [f"{abs(up)} {'north' if up > 0 else 'south'}"] if up else []
        far += [f"{abs(right)} {'east' if right > 0 else 'west'}"] if right else []
        return f"coin {' '.join(far)}. doors {' '.join(self.doors(room))}"


class Houses:
    """Task source of houses with demonstrations; one in ten houses is held out.

    Args:
        side: Rooms per wall; null for four, with the coin three to six moves away.
        moves: Minimum and maximum moves to the coin, if `side` is set.
    """

    def __init__(self, *, seed: int = 0, side: int | None = None, moves: tuple[int, int] = (3, 6)) -> None:
        self.seed = seed
        self.kind = f"house/{side}/{moves[0]}-{moves[1]}" if side is not None else "house"

    def task(self, index: int) -> Task:
        """Return training house `index`."""
        return self._task(derive_random(self.seed, "house", index).randrange(10**9) * 10 + 1)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out houses, which do not depend on the seed."""
        return [self._task(number * 10) for number in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next door of the shortest path."""
        house = House(task.id)
        room = house.start
        for message in conversation:
            for call in message.tool_calls:
                room = house.doors(room).get(json.loads(call.arguments)["direction"], room)
        way = house.path(room)
        return assistant("", ToolCall("go", json.dumps({"direction": way[0]}))) if way else assistant("here")

    def _task(self, number: int) -> Task:
        house = House(f"{self.kind}/{number}")
        way = house.path(house.start) or []
        return Task(f"{self.kind}/{number}", house.seen(house.start), {}, {"kind": f"{len(way)} moves"})


class Walking:
    """Environment of a house. Episodes terminate at the coin, or are truncated by the recipe's turns."""

    def __init__(self) -> None:
        self.house, self.room = House("house/0"), (0, 0)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the first observation."""
        self.house = House(task.id)
        self.room = self.house.start
        return Observation((user(self.house.seen(self.room)),), (GO,))

    async def step(self, action: Message) -> StepResult:
        """Make a move, or report a closed door."""
        if not action.tool_calls:
            return StepResult(Observation((user("walk"),)), calls=(CallRecord("", "malformed_call", 0.0),))
        try:
            direction = json.loads(action.tool_calls[0].arguments)["direction"]
        except (ValueError, KeyError, TypeError):
            direction = ""
        doors = self.house.doors(self.room)
        if direction not in doors:
            message = tool_result(f"closed. {self.house.seen(self.room)}")
            return StepResult(Observation((message,)), calls=(CallRecord("go", "tool_error", 0.0),))
        self.room = doors[direction]
        if self.room == self.house.coin:
            observation = Observation((tool_result("coin found"),))
            return StepResult(observation, terminated=True, calls=(CallRecord("go", "ok", 0.0),))
        return StepResult(Observation((tool_result(self.house.seen(self.room)),)), calls=(CallRecord("go", "ok", 0.0),))

    async def close(self) -> None:
        """Release nothing."""


async def found_coin(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the coin was found."""
    success = trajectory.ended is EndReason.TERMINATED
    return Score(float(success), {"coin": float(success)}, success=success)
