"""A dense reward for the houses of `text_game`: each step nearer to the coin is rewarded."""

from __future__ import annotations

import json

from text_game import House, found_coin
from whetstone.rewards.protocol import provides
from whetstone.trajectory import Score, Task, Trajectory

STEP = 0.1
"""Reward of a move toward the coin, and cost of a move away from it."""


@provides("process_rewards")
async def nearer(trajectory: Trajectory, task: Task) -> Score:
    """Score as `found_coin` does, plus 0.1 per turn toward the coin and minus 0.1 per turn away from it.

    The outcome contains all turn rewards, so that estimators that read only outcomes receive the same total.
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
