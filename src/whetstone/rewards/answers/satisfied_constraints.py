"""Reward for a text that satisfies the constraints of its task."""

from __future__ import annotations

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.tasks.constraint_rules import check_constraint
from whetstone.trajectory import Score, Task, Trajectory


async def satisfied_constraints(trajectory: Trajectory, task: Task, *, partial: bool = False) -> Score:
    """Return 1 if the final answer satisfies all constraints of `task.private["constraints"]`; else 0.

    Args:
        partial: Whether the reward is the fraction of satisfied constraints instead; 0 if a word that the text must
            include is missing, because a text on anything satisfies some of the others.

    Raises:
        ValueError: If a constraint is invalid.

    Source: arXiv:2505.07591; the part `satisfied` is the fraction of constraints.
    """
    answer = final_answer(trajectory) or ""
    constraints = task.private["constraints"]
    satisfied = [check_constraint(each, answer) for each in constraints]
    is_about_task = all(right for each, right in zip(constraints, satisfied, strict=True) if each["kind"] == "include")
    fraction, success = sum(satisfied) / max(1, len(satisfied)), bool(satisfied) and all(satisfied)
    value = fraction * is_about_task if partial else float(success)
    return Score(value, {"satisfied": fraction}, success=success)
