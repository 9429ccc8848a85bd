"""Is each step right? A judge, or labels that are there, score every step; the episode's score is put together of them.

Easy to get wrong: a product punishes length: twenty good steps at 0.95 make 0.36. The mean is reported beside it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Literal

from whetstone.rewards.judged.material import shown_turn, transcript
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory

Together = Literal["product", "mean", "min", "max"]


class StepLabels:
    """Scores of steps, from 0 to 1, on their turns; and put together, as a part or as the value.

    Labels are `task.private["step_labels"]`, one a turn (what is missing is judged), or a judge says whether each step
    (its words, its calls and what they were given) is right, having seen those before it.

    Args:
        judge: Asked of each step without a label; null: labels must be there.
        together: How an episode's steps make one number.
        outcome: A reward for the end; null: the number is the value, for choosing the best of several.
        weight: Of the steps, beside an outcome.

    Source: ToolComp 2025, arXiv:2501.01290.
    """

    provides = frozenset({"process_rewards", "steps"})

    def __init__(
        self,
        *,
        judge: Judge | None = None,
        together: Together = "mean",
        outcome: Reward | None = None,
        weight: float = 1.0,
    ) -> None:
        self.judge, self.together, self.outcome, self.weight = judge, together, outcome, weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score the steps.

        Raises:
            ValueError: A step has no label, and there is no judge.
            InfrastructureError: The judge gave no answer.
        """
        labels = list(task.private.get("step_labels", ()))[: len(trajectory.turns)]
        judged = await asyncio.gather(
            *(self._judged(k, trajectory, task) for k in range(len(labels), len(trajectory.turns)))
        )
        steps = [*map(float, labels), *judged]
        whole = aggregate(steps, self.together)
        parts = {"steps": whole, "steps_mean": aggregate(steps, "mean")}
        if self.outcome is None:
            return Score(whole, parts)
        score = await self.outcome(trajectory, task)
        if score.invalid:
            return score
        turns = tuple(self.weight * step / max(1, len(steps)) for step in steps)
        return Score(score.value, {**score.parts, **parts}, turns, score.success, score.signals)

    async def _judged(self, number: int, trajectory: Trajectory, task: Task) -> float:
        if self.judge is None:
            raise ValueError(f"step {number + 1} has no label, and there is no judge")
        material = {
            "task": task.prompt,
            "before": transcript(trajectory, turns=range(number)) if number else "",
            "step": shown_turn(trajectory.turns[number]),
        }
        ask = (
            "Is this step right: does it follow from what came before, and do its call and input bring the task nearer?"
        )
        return float(bool((await self.judge.answer(Question(ask, material)))["met"]))

    async def close(self) -> None:
        """Let go of the judge."""
        if self.judge is not None:
            await self.judge.close()


def aggregate(steps: Sequence[float], how: Together) -> float:
    """One number of several; 0 of none.

    Source: ToolComp 2025, arXiv:2501.01290, §4.
    """
    if not steps:
        return 0.0
    return {"product": math.prod(steps), "mean": sum(steps) / len(steps), "min": min(steps), "max": max(steps)}[how]
