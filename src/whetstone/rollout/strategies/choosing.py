"""Who answers in the end, when a task is tried several times? One of the tries, by a verifier or by votes.

All tries are kept; those that were not chosen are marked `not_chosen` and are in no statistic but in the costs.

Easy to get wrong: a verifier that is the reward itself chooses with the answers in hand; that is pass@k under another
name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.rewards import REWARDS, Reward, final_answer, make_reward, scored
from whetstone.rewards.answers.exact_match import normalized
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import Group, RemovalScope, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """`n` episodes; the verifier's favourite answers.

    Sources: Cobbe et al. 2021, arXiv:2110.14168; ToolComp 2025, arXiv:2501.01290, for verifiers of steps.
    """

    n: int
    """Episodes."""
    verifier: Any
    """A reward, named as in a recipe; its value says how good an episode looks."""
    at_evaluation = True
    _reward: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n is 1 or more, got {self.n}")
        object.__setattr__(self, "_reward", make_reward(self.verifier, REWARDS))

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        tried = await asyncio.gather(*(roller.sample(task, index=i) for i in range(self.n)))
        values = await valued(self._reward, tried, task)
        best = max(range(len(tried)), key=lambda k: (values[k] is not None, values[k] or 0.0, -k))
        return Group(task, chosen(tried, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote:
    """`n` episodes; the first of those that say what most say answers.

    Source: Wang et al. 2022 (self-consistency), arXiv:2203.11171.
    """

    n: int
    """Episodes."""
    at_evaluation = True

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        tried = await asyncio.gather(*(roller.sample(task, index=i) for i in range(self.n)))
        return Group(task, chosen(tried, voted(tried)))


def voted(tried: Sequence[Trajectory]) -> int:
    """The first of the largest class of answers; of several as large, the class that came first; 0 without answers."""
    classes: dict[str, list[int]] = {}
    for place, trajectory in enumerate(tried):
        answer = final_answer(trajectory) if trajectory.ended.valid else None
        if answer is not None:
            classes.setdefault(normalized(answer), []).append(place)
    return max(classes.values(), key=len)[0] if classes else 0


def chosen(tried: Sequence[Trajectory], place: int) -> tuple[Trajectory, ...]:
    """All of them; only one counts."""
    return tuple(
        trajectory
        if number == place
        else replace(trajectory, removal=RemovalScope.BEFORE_BASELINE, marks=(*trajectory.marks, NOT_CHOSEN))
        for number, trajectory in enumerate(tried)
    )


async def valued(verifier: Reward, tried: Sequence[Trajectory], task: Task) -> list[float | None]:
    """What a verifier says of episodes, whole or only begun; None where it cannot tell."""
    judged = await asyncio.gather(*(scored(verifier, replace(t, score=None, removal=None), task) for t in tried))
    return [one.score.value if one.score is not None else None for one in judged]


NOT_CHOSEN = "not_chosen"
"""Marks a try that did not answer in the end."""
