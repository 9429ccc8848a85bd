"""Rubric reward: points of the criteria that are met over all positive points, decided by a judge or by rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.errors import TaskError, did_you_mean
from whetstone.plugins import find_part
from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.judge_rewards.judge_input import format_episode, without_thoughts
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.protocol import Reward, close_reward
from whetstone.trajectory import Score, Task, Trajectory

Rule = Callable[[Trajectory, Task], object]
"""Function (trajectory, task) that decides a rubric criterion without a judge; its result is used as a boolean."""


def right_number(trajectory: Trajectory, task: Task) -> bool:
    """Return whether the last number of the final answer equals that of the private `answer`."""
    number = last_number(final_answer(trajectory) or "")
    return number is not None and number == last_number(str(task.private.get("answer", "")))


def called_as_often(trajectory: Trajectory, task: Task) -> bool:
    """Return whether at least as many calls succeeded as the private `calls` contains, and at least one."""
    worked = sum(call.outcome == "ok" for call in trajectory.calls)
    return worked >= max(1, len(task.private.get("calls", ())))


def number_was_read(trajectory: Trajectory, task: Task) -> bool:
    """Return whether the last number of the final answer equals the last number of the last tool result."""
    read = [message.text for turn in trajectory.turns for message in turn.observation if message.role == "tool"]
    number = last_number(final_answer(trajectory) or "")
    return number is not None and bool(read) and number == last_number(read[-1])


def no_call(trajectory: Trajectory, task: Task) -> bool:
    """Return whether the episode made no tool call; usually a criterion with points below 0."""
    return not trajectory.calls


RULES: Mapping[str, Rule] = {
    "called_as_often": called_as_often,
    "no_call": no_call,
    "number_was_read": number_was_read,
    "right_number": right_number,
}
"""Built-in rules by name; a task may name them without the recipe listing them."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """Criterion of a rubric, decided by a judge or by a rule."""

    text: str
    """Text of the criterion, which a judge reads."""
    points: float = 1.0
    """Points if the criterion is met; below 0 for undesired properties."""
    rule: str = ""
    """Name of the function `(Trajectory, Task) -> bool` that decides: a built-in rule, or one that the recipe lists;
    empty: the judge decides."""


class Rubric:
    """Scores the points of met criteria divided by all positive points; the score may be below 0.

    Criteria are `task.private[key]`: texts, or mappings with `criterion` (or `text`), `points` and `rule`.

    Args:
        judge: Judge that decides on each criterion without a rule; null if all criteria have a rule.
        criteria: Criteria of all tasks, before the task's own.
        rules: Rules that tasks may name in addition to the built-in ones (`right_number`, `called_as_often`,
            `number_was_read`, `no_call`), as `package.module:function`. Names in a task's file are looked up among
            these and never imported.
        key: Key of the task's own criteria in its private data.
        answer_only: Whether the judge sees only the final answer instead of the transcript.
        success_at: Score from which a task counts as solved.
        outcome: Reward that determines success instead; it adds nothing to the value.

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
        self.criteria = parse_criteria(criteria or [])
        named = [*(rules or ()), *(criterion.rule for criterion in self.criteria if criterion.rule)]
        self.rules: dict[str, Rule] = {**RULES, **{name: find_part("rule", name, RULES) for name in named}}

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the criteria of the recipe and of the task.

        Raises:
            InfrastructureError: If the judge returns no valid answer; the score is unknown.
            ValueError: If no criterion has points above 0.
            TaskError: If a criterion cannot be decided; see `check`.
        """
        self.check(task)
        criteria = self._criteria(task)
        met = await asyncio.gather(*(self._met(criterion, trajectory, task) for criterion in criteria))
        value = rubric_score(met, [criterion.points for criterion in criteria])
        parts = {"rubric": value, "criteria_met": sum(met) / len(met)}
        if self.outcome is None:
            return Score(value, parts, success=value >= self.success_at - 1e-9)
        outcome = await self.outcome(trajectory, task)
        if outcome.invalid:
            return outcome
        return Score(value, {**outcome.parts, "outcome": outcome.value, **parts}, success=outcome.success)

    def check(self, task: Task) -> None:
        """Check that every criterion of a task can be decided; see `rewards.protocol.ChecksTask`.

        Raises:
            TaskError: If a criterion has a rule that the recipe does not list, or has no rule and there is no judge.
        """
        for criterion in self._criteria(task):
            if criterion.rule and criterion.rule not in self.rules:
                near = did_you_mean(criterion.rule, self.rules)
                problem = f'the rule "{criterion.rule[:100]}" is not among those the recipe lists (reward.rules){near}'
                raise TaskError(f"task {task.id}: {problem}")
            if not criterion.rule and self.judge is None:
                problem = f'criterion "{criterion.text[:100]}" has no rule, and there is no judge'
                raise TaskError(f"task {task.id}: {problem}; set reward.judge, or the criterion's `rule`")

    def _criteria(self, task: Task) -> list[Criterion]:
        return [*self.criteria, *parse_criteria(task.private.get(self.key, ()))]

    async def _met(self, criterion: Criterion, trajectory: Trajectory, task: Task) -> bool:
        if criterion.rule:
            return bool(self.rules[criterion.rule](trajectory, task))
        assert self.judge is not None  # ensured by `check`
        answer = final_answer(trajectory) or ""
        work = without_thoughts(answer) if self.answer_only else format_episode(trajectory)
        question = Question(
            f"Does the agent's work meet this criterion? {criterion.text}", {"task": task.prompt, "work": work}
        )
        return bool((await self.judge.answer(question))["met"])

    async def close(self) -> None:
        """Close the judge and the outcome reward, if there are any."""
        if self.judge is not None:
            await self.judge.close()
        if self.outcome is not None:
            await close_reward(self.outcome)


def parse_criteria(items: Sequence[Any]) -> list[Criterion]:
    """Parse rubric criteria: texts, or mappings with `criterion` (or `text`), `points` and `rule`."""
    criteria = []
    for one in items:
        if isinstance(one, Mapping):
            text = str(one.get("criterion", one.get("text", "")))
            criteria.append(Criterion(text, float(one.get("points", 1.0)), str(one.get("rule", ""))))
        else:
            criteria.append(Criterion(str(one)))
    return criteria


def rubric_score(met: Sequence[bool], each: Sequence[float]) -> float:
    """Compute the rubric score: Σ points of met criteria / Σ positive points.

    Args:
        met: [N] whether each criterion is met.
        each: [N] points of each criterion.

    Raises:
        ValueError: If no points are positive.

    Source: RuscaRL 2025, arXiv:2508.16949, and its code.
    """
    most = sum(point for point in each if point > 0)
    if most <= 0:
        raise ValueError("the rubric has no criterion with points above 0; give at least one criterion positive points")
    return sum(point for one, point in zip(met, each, strict=True) if one) / most
