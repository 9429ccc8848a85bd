"""Step label reward: labels or a judge score every step, and the step scores are aggregated to an episode score.

Note: A product penalizes length: twenty good steps at 0.95 give 0.36. The mean is reported as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from whetstone.errors import InfrastructureError
from whetstone.rewards.judge_rewards.judge_input import format_episode, format_turn
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.protocol import Reward, close_reward
from whetstone.trajectory import Score, Task, Trajectory

Together = Literal["product", "mean", "min", "max"]
"""Aggregation of step scores to one number."""


class StepLabels:
    """Scores each step by labels, a judge or a learned scorer, and aggregates the step scores.

    Labels are `task.private["step_labels"]`, one per turn; missing ones are judged. The judge decides whether each step
    (its text, calls and arguments) is right, given the preceding steps. A `scorer`, such as `reward_model`, scores the
    episode up to each step instead: a learned process reward model for `best_of` and `tree_search`. The step scores are
    rewards of their turns if `outcome` is set.

    Args:
        judge: Judge that decides on each step without a label; null: labels or a scorer are required.
        scorer: Reward whose value of the episode up to a step is the step's score, instead of a judge.
        together: Aggregation of an episode's step scores.
        outcome: Reward of the outcome; null: the aggregate is the value, for choosing the best of several.
        weight: Weight of the step scores relative to the outcome.

    Source: ToolComp 2025, arXiv:2501.01290.
    """

    provides = frozenset({"process_rewards", "steps"})

    def __init__(
        self,
        *,
        judge: Judge | None = None,
        scorer: Reward | None = None,
        together: Together = "mean",
        outcome: Reward | None = None,
        weight: float = 1.0,
    ) -> None:
        if judge is not None and scorer is not None:
            raise ValueError("scorer: cannot be combined with judge; remove one")
        self.judge, self.scorer = judge, scorer
        self.together, self.outcome, self.weight = together, outcome, weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory and each of its steps.

        Raises:
            ValueError: If a step has no label and there is no judge.
            InfrastructureError: If the judge returns no valid answer.
        """
        labels = list(task.private.get("step_labels", ()))[: len(trajectory.turns)]
        judged = await asyncio.gather(
            *(self._judged(k, trajectory, task) for k in range(len(labels), len(trajectory.turns)))
        )
        steps = [*map(float, labels), *judged]
        total = aggregate_steps(steps, self.together)
        parts = {"steps": total, "steps_mean": aggregate_steps(steps, "mean")}
        if self.outcome is None:
            return Score(total, parts)
        score = await self.outcome(trajectory, task)
        if score.invalid:
            return score
        turns = tuple(self.weight * step / max(1, len(steps)) for step in steps)
        return Score(score.value, {**score.parts, **parts}, turns, score.success, score.signals)

    async def _judged(self, number: int, trajectory: Trajectory, task: Task) -> float:
        if self.scorer is not None:
            reached = replace(trajectory, turns=trajectory.turns[: number + 1], score=None)
            score = await self.scorer(reached, task)
            if score.invalid:
                raise InfrastructureError(f"step {number + 1} has no score: {score.invalid}")
            return score.value
        if self.judge is None:
            raise ValueError(
                f"step {number + 1} has no label, and there is no judge; set reward.judge or add the label"
            )
        material = {
            "task": task.prompt,
            "before": format_episode(trajectory, turns=range(number)) if number else "",
            "step": format_turn(trajectory.turns[number]),
        }
        ask = (
            "Is this step right: does it follow from what came before, and do its call and input bring the task nearer?"
        )
        return float(bool((await self.judge.answer(Question(ask, material)))["met"]))

    async def close(self) -> None:
        """Close the judge or the scorer, if there is one."""
        if self.judge is not None:
            await self.judge.close()
        await close_reward(self.scorer)


def aggregate_steps(steps: Sequence[float], how: Together) -> float:
    """Aggregate step scores to one number by product, mean, minimum or maximum.

    Returns 0 without steps.

    Source: ToolComp 2025, arXiv:2501.01290, §4.
    """
    if not steps:
        return 0.0
    return {"product": math.prod(steps), "mean": sum(steps) / len(steps), "min": min(steps), "max": max(steps)}[how]
