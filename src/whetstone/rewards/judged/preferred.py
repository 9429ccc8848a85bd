"""Which of a group's episodes are better? Pairs are judged, each in both orders, and the share of wins is the reward.

Easy to get wrong: judges like what stands first. A pair counts as won only where both orders agree; otherwise it is a
tie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from whetstone.rewards.judged.material import transcript
from whetstone.rewards.judges import Judge, Question
from whetstone.rewards.judges.heard import judgement_of
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


class Preferred:
    """Win rate of an episode against the others of its group; a tie counts half, a group of one 0.5.

    Args:
        judge: Asked of each pair, twice.
        ask: What better means.
        base_reward: Reward that this one is added to; it determines success.
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
        """By itself."""
        return await self._with(trajectory, task, 0.5, 0.0)

    async def compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        """Beside each other; N (N − 1) questions."""
        wins, disagreed = [0.0] * len(trajectories), [0] * len(trajectories)
        pairs = list(combinations(range(len(trajectories)), 2))
        shown = [transcript(trajectory) for trajectory in trajectories]
        verdicts = await asyncio.gather(
            *(prefer(self.judge, self.ask, task.prompt, shown[a], shown[b]) for a, b in pairs)
        )
        said: list[list[Judgement]] = [[] for _ in trajectories]
        for (a, b), verdict in zip(pairs, verdicts, strict=True):
            if verdict.said:
                asked = f"{self.ask} First: {trajectories[a].id}; second: {trajectories[b].id}"
                for place in (a, b):
                    said[place].append(judgement_of(asked, verdict.said))
            wins[a] += verdict.won
            wins[b] += 1 - verdict.won
            disagreed[a] += verdict.disagreed
            disagreed[b] += verdict.disagreed
        others = max(1, len(trajectories) - 1)
        return [
            await self._with(t, task, won / others if len(trajectories) > 1 else 0.5, split / others, heard)
            for t, won, split, heard in zip(trajectories, wins, disagreed, said, strict=True)
        ]

    async def _with(
        self, trajectory: Trajectory, task: Task, share: float, disagreed: float, said: Sequence[Judgement] = ()
    ) -> Score:
        parts = {"wins": share, "order_disagreed": disagreed}
        if self.base_reward is None:
            return Score(self.weight * share, parts, judgements=tuple(said))
        other = await self.base_reward(trajectory, task)
        value, judgements = other.value + self.weight * share, (*other.judgements, *said)
        return replace(other, value=value, parts={**other.parts, **parts}, judgements=judgements)

    async def close(self) -> None:
        """Let go of the judge."""
        await self.judge.close()


@dataclass(frozen=True, slots=True)
class Preference:
    """What a pair came to."""

    won: float
    """By the first: 1, 0, or a half for neither."""
    disagreed: bool
    """Whether the answer was another when their places were changed."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The answer where the first stood first; empty where nobody was asked."""


async def prefer(judge: Judge, ask: str, task: str, one: str, other: str) -> Preference:
    """Which of two is better, asked in both orders."""
    if one == other:
        return Preference(0.5, False)
    questions = [
        Question(ask, {"task": task, "first": a, "second": b}, BETTER) for a, b in ((one, other), (other, one))
    ]
    answers = await asyncio.gather(*map(judge.answer, questions))
    there = {"first": 1.0, "second": 0.0, "neither": 0.5}[answers[0]["better"]]
    back = {"first": 0.0, "second": 1.0, "neither": 0.5}[answers[1]["better"]]
    return Preference(there if there == back else 0.5, there != back, answers[0])
