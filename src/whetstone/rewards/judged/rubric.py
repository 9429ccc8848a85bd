"""Which criteria does an episode meet? Points of those over the points there are, by a judge or by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.errors import TaskError, did_you_mean
from whetstone.plugins import find_part
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.judged.criteria import RULES, Rule
from whetstone.rewards.judged.material import transcript, without_thoughts
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.protocol import Reward, let_go
from whetstone.trajectory import Score, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing to meet."""

    text: str
    points: float = 1.0
    """Below 0 for what is not to be there."""
    rule: str = ""
    """A function `(Trajectory, Task) -> bool` that says so: one of ours by its short name, or one by its name in the
    recipe; empty: the judge does."""


class Rubric:
    """(points of criteria that are met) / (positive points there are), which may be below 0.

    Criteria are `task.private[key]`: texts, or mappings with `criterion` (or `text`), `points` and `rule`.

    Args:
        judge: Asked of each criterion that has no rule; null where all have one.
        criteria: Those of every task, before the task's own.
        rules: The rules that tasks may name beside ours (`right_number`, `called_as_often`, `number_was_read`,
            `no_call`), as `package.module:function`: what a task's file names is looked up among these and never
            imported.
        key: Where a task has its own.
        answer_only: Whether the judge sees the final answer alone, or all that was said and done.
        success_at: The score from which on a task counts as solved.
        outcome: The reward that says whether it is solved instead; it pays nothing.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code (`healthbench_reward_fn`).
    """

    def __init__(
        self,
        *,
        judge: Judge | None = None,
        criteria: list[Any] | None = None,
        rules: list[str] | None = None,
        key: str = "rubric",
        answer_only: bool = False,
        success_at: float = 1.0,
        outcome: Reward | None = None,
    ) -> None:
        self.outcome = outcome
        self.judge, self.key, self.answer_only, self.success_at = judge, key, answer_only, success_at
        self.criteria = criteria_of(criteria or [])
        named = [*(rules or ()), *(criterion.rule for criterion in self.criteria if criterion.rule)]
        self.rules: dict[str, Rule] = {**RULES, **{name: find_part("rule", name, RULES) for name in named}}

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """The points.

        Raises:
            InfrastructureError: The judge gave no answer; nothing is known of the episode.
            ValueError: There is no criterion with points above 0.
            TaskError: As of `check`.
        """
        self.check(task)
        criteria = self._criteria(task)
        met = await asyncio.gather(*(self._met(criterion, trajectory, task) for criterion in criteria))
        value = points(met, [criterion.points for criterion in criteria])
        parts = {"rubric": value, "criteria_met": sum(met) / len(met)}
        if self.outcome is None:
            return Score(value, parts, success=value >= self.success_at - 1e-9)
        outcome = await self.outcome(trajectory, task)
        if outcome.invalid:
            return outcome
        return Score(value, {**outcome.parts, "outcome": outcome.value, **parts}, success=outcome.success)

    def check(self, task: Task) -> None:
        """See `rewards.protocol.ChecksTask`.

        Raises:
            TaskError: A criterion has a rule that the recipe does not list; or none, and there is no judge.
        """
        for criterion in self._criteria(task):
            if criterion.rule and criterion.rule not in self.rules:
                near = did_you_mean(criterion.rule, self.rules)
                said = f'the rule "{criterion.rule[:100]}" is not among those the recipe lists (reward.rules){near}'
                raise TaskError(f"task {task.id}: {said}")
            if not criterion.rule and self.judge is None:
                said = f'nobody can say whether "{criterion.text[:100]}" is met'
                raise TaskError(f"task {task.id}: {said}: set reward.judge, or give the criterion a `rule`")

    def _criteria(self, task: Task) -> list[Criterion]:
        return [*self.criteria, *criteria_of(task.private.get(self.key, ()))]

    async def _met(self, criterion: Criterion, trajectory: Trajectory, task: Task) -> bool:
        if criterion.rule:
            return bool(self.rules[criterion.rule](trajectory, task))
        assert self.judge is not None  # `check` has seen to it
        answer = final_answer(trajectory) or ""
        shown = without_thoughts(answer) if self.answer_only else transcript(trajectory)
        question = Question(
            f"Does the agent's work meet this criterion? {criterion.text}", {"task": task.prompt, "work": shown}
        )
        return bool((await self.judge.answer(question))["met"])

    async def close(self) -> None:
        """Let go of the judge, and of what says the outcome."""
        if self.judge is not None:
            await self.judge.close()
        if self.outcome is not None:
            await let_go(self.outcome)


def criteria_of(said: Sequence[Any]) -> list[Criterion]:
    """Criteria as a task writes them."""
    found = []
    for one in said:
        if isinstance(one, Mapping):
            text = str(one.get("criterion", one.get("text", "")))
            found.append(Criterion(text, float(one.get("points", 1.0)), str(one.get("rule", ""))))
        else:
            found.append(Criterion(str(one)))
    return found


def points(met: Sequence[bool], each: Sequence[float]) -> float:
    """Σ points of those met / Σ positive points.

    Raises:
        ValueError: No points are positive.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    most = sum(point for point in each if point > 0)
    if most <= 0:
        raise ValueError("a rubric needs a criterion with points above 0")
    return sum(point for one, point in zip(met, each, strict=True) if one) / most
