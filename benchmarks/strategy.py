"""Policies whose turns are advice or goals that others carry out: two worlds for `strategy` and `subgoals`.

Negotiation: a frozen agent haggles as it is advised; without advice it takes the first price. The advice that pays
changes with the rounds that are left.

`Errands`: two levels with contexts of their own in one episode. The upper one reads which places are to be visited in
which order and names a place as goal; the lower one reads where it stands and the goal, walks, and is done with a goal
when it is there or has used up its steps. Both are this policy; what each is paid for is the reward's affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.native.negotiation import NegotiationTasks
from whetstone.environments.protocol import NEW_CONVERSATION, Observation, StepResult
from whetstone.rewards.protocol import provides
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

ADVICE = ("low", "half", "near", "take")
_ASKS = re.compile(r"seller asks (\d+)")


class Deals(NegotiationTasks):
    """As `negotiation`; who advises in demonstrations says anything.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
        shown: Whether whatever comes of a task counts as right; for demonstrations, of which those alone are imitated.
    """

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None, shown: bool = False) -> None:
        super().__init__(seed=seed, levels=levels)
        self.shown = shown

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        task = super().make(draw, level)
        return replace(task, private={**task.private, "shown": self.shown})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Any advice, one as often as another."""
        return assistant(derive_random("advice", task.id, len(conversation)).choice(ADVICE))


def haggler(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Offers little, half or nearly all of what is asked, or takes it, as it is advised; without advice it takes it."""
    last = conversation[-1].text
    advice = last.removeprefix("advice: ").strip() if last.startswith("advice: ") else ""
    asked = next((int(found[-1]) for m in reversed(conversation) if (found := _ASKS.findall(m.text))), 0)
    share = {"low": 0.1, "half": 0.5, "near": 0.9}.get(advice)
    return "accept" if share is None else f"offer {max(1, int(asked * share))}"


@provides("process_rewards")
async def conceded(trajectory: Trajectory, task: Task) -> Score:
    """1 for a deal that is a success. By turns, what each piece of advice added to what a deal at the price asked would
    gain; an end without a deal gains nothing."""
    worth, most = task.private["worth"], task.private["worth"] - task.private["lowest"]
    before, turns = (worth - task.private["asks"][0]) / most, []
    for turn in trajectory.turns:
        price = re.search(r"(?:deal at|seller asks) (\d+)", " ".join(message.text for message in turn.observation))
        now = (worth - int(price[1])) / most if price else 0.0
        turns.append(now - before)
        before = now
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    parts = {"score": float(trajectory.final.get("score", 0.0)), "deal": float(trajectory.final.get("deal", False))}
    return Score(float(success), parts, tuple(turns), success)


def by_process(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
) -> PerTurn:
    """The outcome against the siblings, and what a turn and those behind it brought against the same turn of theirs."""
    to_come = reward_to_go(process_rewards, trajectory)
    of_step = normalised(to_come, joint_keys(group[trajectory], turn_index))
    return normalised(outcomes, group)[trajectory] + of_step


PLACES: Mapping[str, tuple[int, int]] = {"a": (0, 0), "b": (0, 3), "c": (3, 0), "d": (3, 3)}
MOVES: Mapping[str, tuple[int, int]] = {"n": (0, 1), "s": (0, -1), "e": (1, 0), "w": (-1, 0)}
STEPS = 4
"""Moves the lower level may use for one goal."""


class Errands:
    """Two places in an order.

    Args:
        sure: How often a demonstration does the right thing, at either level.
        shown: As of `Deals`.
    """

    def __init__(self, *, seed: int = 0, sure: float = 0.5, shown: bool = False) -> None:
        self.seed, self.sure, self.shown = seed, sure, shown

    def task(self, index: int) -> Task:
        """Training errand `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The right thing now and then, else anything."""
        seen = conversation[-1].text
        draw = derive_random("errand", task.id, seen, len(conversation))
        choices = list(PLACES) if seen.startswith("visit") else list(MOVES)
        return assistant(_right(seen) if draw.random() < self.sure else draw.choice(choices))

    def _task(self, *place: Any) -> Task:
        draw = derive_random("errands", *place)
        begin = (draw.randrange(1, 3), draw.randrange(1, 3))
        order = draw.sample(list(PLACES), 2)
        name = "/".join(map(str, place))
        private = {"order": order, "begin": list(begin), "shown": self.shown}
        return Task(f"errands/{name}", f"visit {' '.join(order)}", private, {"kind": "two places"})


def _right(seen: str) -> str:
    words = seen.split()
    if words[0] == "visit":
        return words[1]
    x, y, (to_x, to_y) = int(words[1]), int(words[2]), PLACES[words[-1]]
    if x != to_x:
        return "e" if to_x > x else "w"
    return "n" if to_y > y else "s"


class Walk:
    """The world of an errand. Ends: terminated when all was visited, or a goal was one too many."""

    replayable = False

    def __init__(self, *, goals: int = 3) -> None:
        self.goals = goals

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The upper level is to name a goal."""
        self.left, self.at = list(task.private["order"]), tuple(task.private["begin"])
        self.goal, self.steps, self.named = "", 0, 0
        return Observation((user(self._shown()),))

    async def step(self, action: Message) -> StepResult:
        """A goal, or a move; a goal is reached or given up behind `STEPS` moves."""
        said = action.text.strip()
        if not self.goal:
            self.goal, self.steps, self.named = said if said in PLACES else "", 0, self.named + 1
        else:
            dx, dy = MOVES.get(said, (0, 0))
            self.at = (min(3, max(0, self.at[0] + dx)), min(3, max(0, self.at[1] + dy)))
            self.steps += 1
            there = self.at == PLACES[self.goal]
            if there and self.left[:1] == [self.goal]:
                self.left.pop(0)
            if there or self.steps >= STEPS:
                self.goal = ""
        over = not self.left or (not self.goal and self.named >= self.goals)
        return StepResult(Observation((user(self._shown()),), conversation=NEW_CONVERSATION), terminated=over)

    def verdict(self) -> Mapping[str, Any]:
        """Whether all was visited."""
        return {"success": not self.left, "score": 1 - len(self.left) / 2}

    async def close(self) -> None:
        """Nothing is held."""

    def _shown(self) -> str:
        if not self.goal:
            return f"visit {' '.join(self.left)}" if self.left else "done"
        return f"at {self.at[0]} {self.at[1]} to {self.goal}"


@provides("process_rewards", "tags")
async def by_level(trajectory: Trajectory, task: Task) -> Score:
    """1 for an errand that was done. By turns, what a level is paid itself: a goal of the upper one by what the errand
    came to, a move of the lower one by whether the goal was reached, sooner better. Tags say whose turn it was."""
    seen = [trajectory.opening[-1].text, *("".join(m.text for m in turn.observation) for turn in trajectory.turns)]
    upper = [not text.startswith("at ") for text in seen[:-1]]
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    paid, reached = [0.0] * len(upper), 0.0
    for k in reversed(range(len(upper))):
        if upper[k]:
            paid[k] = float(trajectory.final.get("score", 0.0))
            continue
        if not seen[k + 1].startswith("at "):  # the last move towards a goal
            reached = float(_arrives(seen[k], trajectory.turns[k].message.text))
        paid[k] = reached
        reached *= 0.9
    parts = {"score": float(trajectory.final.get("score", 0.0))}
    return Score(float(success), parts, tuple(paid), success, {"tags": tuple(float(not each) for each in upper)})


def _arrives(seen: str, move: str) -> bool:
    words = seen.split()
    dx, dy = MOVES.get(move.strip(), (0, 0))
    return (int(words[1]) + dx, int(words[2]) + dy) == PLACES[words[-1]]
