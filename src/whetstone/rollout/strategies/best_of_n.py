"""Best-of-n and majority voting: a task is sampled several times, and one of the episodes is the answer.

All episodes are kept; those that were not selected are marked `not_chosen` and count only in the costs.

Note:
    A verifier that is the reward itself selects with knowledge of the answer; that is pass@k under another name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.rewards import REWARDS, Reward, final_answer, make_reward, score_trajectory
from whetstone.rewards.answers.exact_match import normalize_answer
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, RemovalScope, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """Samples `n` episodes and selects the one with the highest value of a verifier; for evaluations.

    Sources: Cobbe et al. 2021, arXiv:2110.14168; ToolComp 2025, arXiv:2501.01290, for verifiers of steps.
    """

    n: int
    """Number of episodes."""
    verifier: Any
    """Reward whose value ranks the episodes, named as in a recipe."""
    at_evaluation = True
    _reward: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}")
        object.__setattr__(self, "_reward", make_reward(self.verifier, REWARDS))

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        tried = await asyncio.gather(*(roller.sample(task, index=i) for i in range(self.n)))
        values = await verifier_scores(self._reward, tried, task)
        best = max(range(len(tried)), key=lambda k: (values[k] is not None, values[k] or 0.0, -k))
        return Group(task, mark_selected(tried, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote:
    """Samples `n` episodes and selects the first one with the most frequent answer; for evaluations.

    Source: Wang et al. 2022 (self-consistency), arXiv:2203.11171.
    """

    n: int
    """Number of episodes."""
    at_evaluation = True

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        tried = await asyncio.gather(*(roller.sample(task, index=i) for i in range(self.n)))
        return Group(task, mark_selected(tried, majority_vote(tried)))


def majority_vote(tried: Sequence[Trajectory]) -> int:
    """Return the index of the first episode with the most frequent normalized answer.

    Of equally frequent answers the earliest counts. Without any valid answer the result is 0.
    """
    classes: dict[str, list[int]] = {}
    for place, trajectory in enumerate(tried):
        answer = final_answer(trajectory) if trajectory.ended.valid else None
        if answer is not None:
            classes.setdefault(normalize_answer(answer), []).append(place)
    return max(classes.values(), key=len)[0] if classes else 0


def mark_selected(tried: Sequence[Trajectory], place: int) -> tuple[Trajectory, ...]:
    """Mark all trajectories but the one at index `place` as not chosen, so that only the selected one is scored."""
    return tuple(
        trajectory
        if number == place
        else replace(trajectory, removal=RemovalScope.BEFORE_BASELINE, marks=(*trajectory.marks, NOT_CHOSEN))
        for number, trajectory in enumerate(tried)
    )


async def verifier_scores(verifier: Reward, tried: Sequence[Trajectory], task: Task) -> list[float | None]:
    """Compute a verifier's value of each trajectory, finished or not; None if a value cannot be computed."""
    judged = await asyncio.gather(
        *(score_trajectory(verifier, replace(t, score=None, removal=None), task) for t in tried)
    )
    return [one.score.value if one.score is not None else None for one in judged]


NOT_CHOSEN = "not_chosen"
"""Mark of a trajectory that best-of-n, majority voting or `sibling_turns` did not select."""
