"""How far on the way did it come? Each milestone counts once, in its order, as a difference of potentials.

Easy to get wrong: what is a difference of potentials over the whole way changes no best policy; what pays for a
milestone again does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import arguments_of, same_value
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory, Turn


class Milestones:
    """The outcome, and for each turn γ φ(after) − φ(before), with φ the share of milestones reached.

    `task.private["milestones"]` is a list of mappings: `tool`, a call of which ran; `arguments` it had, some or all;
    `says`, a pattern its answer, or any observation of the turn, holds. All that a milestone names must hold in one
    turn, and each counts only when those before it were reached.

    Args:
        outcome: Says whether the task was solved.
        discount: γ.
        weight: Of the differences.

    Source: MiRA 2026 (milestones and potential-based shaping); what a milestone looks at is ours.
    """

    provides = frozenset({"process_rewards", "progress", "milestones"})

    def __init__(self, *, outcome: Reward = exact_match, discount: float = 1.0, weight: float = 1.0) -> None:
        if not 0 < discount <= 1:
            raise ValueError(f"discount is above 0 and at most 1, got {discount:g}")
        self.outcome, self.discount, self.weight = outcome, discount, weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """The outcome and the differences."""
        score = await self.outcome(trajectory, task)
        if score.invalid:
            return score
        milestones: Sequence[Mapping[str, Any]] = task.private["milestones"]
        reached, potentials = 0, [0.0]
        for turn in trajectory.turns:
            while reached < len(milestones) and _reached(turn, milestones[reached]):
                reached += 1
            potentials.append(reached / max(1, len(milestones)))
        turns = tuple(self.weight * difference for difference in differences(potentials, self.discount))
        parts = {**score.parts, "milestones": potentials[-1]}
        return replace(score, parts=parts, turns=turns, signals={**score.signals, "progress": tuple(potentials[:-1])})


def differences(potentials: Sequence[float], discount: float = 1.0) -> list[float]:
    """γ φ_{t+1} − φ_t of [T + 1] potentials.

    Source: Ng, Harada and Russell 1999, "Policy invariance under reward transformations".
    """
    return [discount * after - before for before, after in pairwise(potentials)]


def _reached(turn: Turn, milestone: Mapping[str, Any]) -> bool:
    said = " ".join(message.text for message in turn.observation)
    if "says" in milestone and re.search(str(milestone["says"]), said) is None:
        return False
    if "tool" not in milestone:
        return "says" in milestone
    wanted: Mapping[str, Any] = milestone.get("arguments", {})
    for call, record in zip(turn.message.tool_calls, turn.calls, strict=False):
        given = arguments_of(call.arguments)
        if (
            call.name == milestone["tool"]
            and record.outcome == "ok"
            and all(key in given and same_value(given[key], value) for key, value in wanted.items())
        ):
            return True
    return False
