"""Milestone reward: potential-based shaping by the fraction of milestones that are reached in order.

Note: Rewarding a milestone again changes the optimal policy; each counts once. Differences of potentials leave it as it
is if the potential ends at 0 (`reset_at_end`); otherwise an episode keeps up to `weight` for its progress.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from whetstone.bounded_types import ShareBelowOne
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import parse_or_empty, same_value
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory, Turn


class Milestones:
    """Scores the outcome, and each turn by γ φ(after) − φ(before), with φ the fraction of milestones reached.

    `task.private["milestones"]` is a list of mappings: `tool`, which must have run; `arguments` of the call, some or
    all; `says`, a pattern that an observation of the turn contains; `prints`, the same for progress output of the
    policy's programs, where text that the policy wrote itself does not count; `state`, a name that the environment's
    verdict lists in `milestone_turns` with the number of the action after which it first held. All conditions of a
    milestone must hold in one turn, and each counts only after the preceding ones were reached.

    The sources `support`, `chores` and `web_shop` write milestones with `milestones: true`, for training tasks only. A
    task without milestones, such as a held-out task, pays the outcome only. The rewards of turns of an episode add up
    to at most `weight` for γ = 1, and exactly to 0 with `reset_at_end`.

    Args:
        outcome: Reward that determines whether the task was solved.
        discount: Discount γ per turn.
        weight: Weight of the rewards of turns.
        in_order: Whether a milestone counts only after the preceding ones; otherwise each counts when it is reached.
        reset_at_end: Whether the potential after the last turn is 0, so that the rewards of turns add up to 0 for γ = 1
            and only the outcome pays.
        partial_credit: Value of an unsolved episode per fraction of milestones, below the value of a solved one; needs
            `weight: 0`, because progress is not rewarded twice.

    Source: MiRA 2026, arXiv:2603.19685 (milestones and potential-based shaping), and Words as Beacons 2024 (subgoals
    in training only); the conditions of a milestone are ours. Partial credit from progress output: Reinforcement
    Learning for Machine Learning Engineering Agents 2025, arXiv:2509.01684.
    """

    provides = frozenset({"process_rewards", "progress", "milestones"})

    def __init__(
        self,
        *,
        outcome: Reward = exact_match,
        discount: float = 1.0,
        weight: float = 1.0,
        in_order: bool = True,
        reset_at_end: bool = False,
        partial_credit: ShareBelowOne = 0.0,
    ) -> None:
        if not 0 < discount <= 1:
            raise ValueError(f"discount must be in (0, 1], got {discount:g}")
        if partial_credit and weight:
            raise OptionError(
                "partial_credit", f"rewards milestones that weight ({weight:g}) rewards too; set weight: 0"
            )
        self.outcome, self.discount, self.weight, self.partial_credit = outcome, discount, weight, partial_credit
        self.in_order, self.reset_at_end = in_order, reset_at_end

    def check(self, task: Task) -> None:
        """Check that a task has milestones.

        Raises:
            TaskError: If it has none.
        """
        if not task.private.get("milestones"):
            raise TaskError(
                f"task {task.id} has no private 'milestones'; add them, or set tasks.milestones: true (support, "
                "chores, web_shop)"
            )

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory: the outcome is the value, the potential differences are rewards of turns."""
        score = await self.outcome(trajectory, task)
        if score.invalid:
            return score
        milestones: Sequence[Mapping[str, Any]] = task.private.get("milestones", ())
        ahead, potentials, written, actions = list(milestones), [0.0], "", 0
        states: Mapping[str, int] = trajectory.final.get("milestone_turns", {})
        for turn in trajectory.turns:
            written += "\n".join([turn.message.text, *(call.arguments for call in turn.message.tool_calls), ""])
            actions += not turn.aside
            now = {name for name, number in states.items() if number <= actions}
            for milestone in list(ahead):
                if _reached(turn, milestone, written, now):
                    ahead.remove(milestone)
                elif self.in_order:
                    break
            potentials.append((len(milestones) - len(ahead)) / max(1, len(milestones)))
        paid = [*potentials[:-1], 0.0] if self.reset_at_end else potentials
        turns = tuple(self.weight * difference for difference in potential_differences(paid, self.discount))
        parts = {**score.parts, "milestones": potentials[-1]}
        value = score.value if score.success else max(score.value, self.partial_credit * potentials[-1])
        return replace(
            score, value=value, parts=parts, turns=turns, signals={**score.signals, "progress": tuple(potentials[:-1])}
        )


def potential_differences(potentials: Sequence[float], discount: float = 1.0) -> list[float]:
    """Compute [T] potential differences γ φ_{t+1} − φ_t from [T + 1] potentials φ.

    Source: Ng, Harada and Russell 1999, "Policy invariance under reward transformations".
    """
    return [discount * after - before for before, after in pairwise(potentials)]


def _reached(turn: Turn, milestone: Mapping[str, Any], written: str, states: Collection[str]) -> bool:
    """Return whether all conditions of a milestone hold in a turn."""
    if "state" in milestone and milestone["state"] not in states:
        return False
    observation = " ".join(message.text for message in turn.observation)
    if "says" in milestone and re.search(str(milestone["says"]), observation) is None:
        return False
    if "prints" in milestone:
        printed = re.finditer(str(milestone["prints"]), observation)
        if not any(match[0] and match[0] not in written for match in printed):
            return False
    if "tool" not in milestone:
        return not milestone.keys().isdisjoint(("says", "prints", "state"))
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
