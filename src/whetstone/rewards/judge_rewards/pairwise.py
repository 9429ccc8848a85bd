"""Pairwise judge reward: the win rate of an episode in its group; each pair is judged in both orders.

Note: Judges prefer the first position. A pair counts as won only if both orders agree; otherwise it is a tie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.judges.judge_log import build_judgment
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Judgement, Score, Task, Trajectory

BETTER: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 2000},
        "better": {"type": "string", "enum": ["first", "second", "neither"]},
    },
    "required": ["reason", "better"],
    "additionalProperties": False,
}
"""JSON Schema of the judge's answer: a reason, and which of the two is better."""


class Preferred:
    """Scores an episode by its win rate against the others of its group; a tie counts half, a group of one 0.5.

    Args:
        judge: Judge that compares each pair, twice.
        ask: Question to the judge, which defines what better means.
        base_reward: Reward to which the win rate is added; it determines success.
        weight: Weight of the win rate.
    """

    provides = frozenset({"wins", "order_disagreed"})

    def __init__(
        self,
        *,
        judge: Judge,
        ask: str = "Which of the two pieces of work does the task better?",
        base_reward: Reward | None = None,
        weight: float = 1.0,
    ) -> None:
        self.judge, self.ask, self.base_reward, self.weight = judge, ask, base_reward, weight

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory without its group, with a win rate of 0.5."""
        return await self._with(trajectory, task, 0.5, 0.0)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Score the trajectories of a group by their win rates, with N (N − 1) questions for N trajectories."""
        wins, disagreed = [0.0] * len(trajectories), [0] * len(trajectories)
        pairs = list(combinations(range(len(trajectories)), 2))
        transcripts = [format_episode(trajectory) for trajectory in trajectories]
        verdicts = await asyncio.gather(
            *(compare_texts(self.judge, self.ask, task.prompt, transcripts[a], transcripts[b]) for a, b in pairs)
        )
        judgments: list[list[Judgement]] = [[] for _ in trajectories]
        for (a, b), verdict in zip(pairs, verdicts, strict=True):
            if verdict.answer:
                question = f"{self.ask} First: {trajectories[a].id}; second: {trajectories[b].id}"
                for place in (a, b):
                    judgments[place].append(build_judgment(question, verdict.answer))
            wins[a] += verdict.won
            wins[b] += 1 - verdict.won
            disagreed[a] += verdict.disagreed
            disagreed[b] += verdict.disagreed
        others = max(1, len(trajectories) - 1)
        return [
            await self._with(t, task, won / others if len(trajectories) > 1 else 0.5, split / others, own_judgments)
            for t, won, split, own_judgments in zip(trajectories, wins, disagreed, judgments, strict=True)
        ]

    async def _with(
        self, trajectory: Trajectory, task: Task, share: float, disagreed: float, judgments: Sequence[Judgement] = ()
    ) -> Score:
        parts = {"wins": share, "order_disagreed": disagreed}
        if self.base_reward is None:
            return Score(self.weight * share, parts, judgements=tuple(judgments))
        other = await self.base_reward(trajectory, task)
        value, all_judgments = other.value + self.weight * share, (*other.judgements, *judgments)
        return replace(other, value=value, parts={**other.parts, **parts}, judgements=all_judgments)

    async def close(self) -> None:
        """Close the judge and its connections."""
        await self.judge.close()


@dataclass(frozen=True, slots=True)
class PairwiseResult:
    """Result of the comparison of two texts in both orders."""

    won: float
    """Result of the first text: 1 for better, 0 for worse, 0.5 for a tie."""
    disagreed: bool
    """Whether the judge's answers in the two orders contradict each other."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """Answer of the judge in the original order; empty if the texts are equal and the judge was not queried."""


async def compare_texts(judge: Judge, ask: str, task: str, one: str, other: str) -> PairwiseResult:
    """Compare two texts by a judge, in both orders; equal texts are a tie without a question.

    Args:
        judge: Judge that decides which text is better.
        ask: Question to the judge.
        task: Prompt of the task.
        one: First text.
        other: Second text.
    """
    if one == other:
        return PairwiseResult(0.5, False)
    questions = [
        Question(ask, {"task": task, "first": a, "second": b}, BETTER) for a, b in ((one, other), (other, one))
    ]
    answers = await asyncio.gather(*map(judge.answer, questions))
    original = {"first": 1.0, "second": 0.0, "neither": 0.5}[answers[0]["better"]]
    swapped = {"first": 0.0, "second": 1.0, "neither": 0.5}[answers[1]["better"]]
    return PairwiseResult(original if original == swapped else 0.5, original != swapped, answers[0])
