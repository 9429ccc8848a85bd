"""The house of `text_game`, paid densely: every step nearer to the coin is worth something itself."""

from __future__ import annotations

import json

from text_game import House, found_coin
from whetstone.rewards.protocol import provides
from whetstone.trajectory import Score, Task, Trajectory

STEP = 0.1
"""What a move nearer brings and one farther costs."""


@provides("process_rewards")
async def nearer(trajectory: Trajectory, task: Task) -> Score:
    """As `found_coin`, and a tenth by turns for each door nearer to the coin, the same less for each farther off.

    All of it is in the outcome, too, so that whoever reads outcomes alone is paid as much.
    """
    score = await found_coin(trajectory, task)
    house = House(task.id)
    room, turns = house.start, []
    for turn in trajectory.turns:
        before = len(house.path(room) or ())
        try:
            direction = json.loads(turn.message.tool_calls[0].arguments)["direction"]
        except (IndexError, ValueError, KeyError, TypeError):
            direction = ""
        room = house.doors(room).get(direction, room) if isinstance(direction, str) else room
        turns.append(STEP * (before - len(house.path(room) or ())))
    return Score(score.value + sum(turns), score.parts, tuple(turns), score.success)
