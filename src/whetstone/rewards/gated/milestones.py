"""Milestone reward: potential-based shaping by the fraction of milestones that are reached in order.

Note: Differences of potentials do not change the optimal policy; rewarding a milestone again does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import parse_or_empty, same_value
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory, Turn


class Milestones:
    """Scores the outcome, and each turn by γ φ(after) − φ(before), with φ the fraction of milestones reached.

    `task.private["milestones"]` is a list of mappings: `tool`, which must have run; `arguments` of the call, some or
    all; `says`, a pattern that an observation of the turn contains. All conditions of a milestone must hold in one
    turn, and each counts only after the preceding ones were reached.

    Args:
        outcome: Reward that determines whether the task was solved.
        discount: Discount γ per turn.
        weight: Weight of the rewards of turns.

    Source: MiRA 2026 (milestones and potential-based shaping); the conditions of a milestone are ours.
    """

    provides = frozenset({"process_rewards", "progress", "milestones"})

    def __init__(self, *, outcome: Reward = exact_match, discount: float = 1.0, weight: float = 1.0) -> None:
        if not 0 < discount <= 1:
            raise ValueError(f"discount must be in (0, 1], got {discount:g}")
        self.outcome, self.discount, self.weight = outcome, discount, weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory: the outcome is the value, the potential differences are rewards of turns."""
        score = await self.outcome(trajectory, task)
        if score.invalid:
            return score
        milestones: Sequence[Mapping[str, Any]] = task.private["milestones"]
        reached, potentials = 0, [0.0]
        for turn in trajectory.turns:
            while reached < len(milestones) and _reached(turn, milestones[reached]):
                reached += 1
            potentials.append(reached / max(1, len(milestones)))
        turns = tuple(self.weight * difference for difference in potential_differences(potentials, self.discount))
        parts = {**score.parts, "milestones": potentials[-1]}
        return replace(score, parts=parts, turns=turns, signals={**score.signals, "progress": tuple(potentials[:-1])})


def potential_differences(potentials: Sequence[float], discount: float = 1.0) -> list[float]:
    """Compute [T] potential differences γ φ_{t+1} − φ_t from [T + 1] potentials φ.

    Source: Ng, Harada and Russell 1999, "Policy invariance under reward transformations".
    """
    return [discount * after - before for before, after in pairwise(potentials)]


def _reached(turn: Turn, milestone: Mapping[str, Any]) -> bool:
    observation = " ".join(message.text for message in turn.observation)
    if "says" in milestone and re.search(str(milestone["says"]), observation) is None:
        return False
    if "tool" not in milestone:
        return "says" in milestone
    wanted: Mapping[str, Any] = milestone.get("arguments", {})
    for call, record in zip(turn.message.tool_calls, turn.calls, strict=False):
        arguments = parse_or_empty(call.arguments)
        if (
            call.name == milestone["tool"]
            and record.outcome == "ok"
            and all(key in arguments and same_value(arguments[key], value) for key, value in wanted.items())
        ):
            return True
    return False
