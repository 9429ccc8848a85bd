"""Far from any reward, begin where an expert has already come to; and later nearer and nearer to the beginning.

Easy to get wrong: how often that succeeds says nothing of the task, so such episodes leave every statistic of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Demonstrator, EpisodeKey, StartPrefix
from whetstone.tasks.protocol import Expert, Source
from whetstone.trajectory import Author, Tokens, Turn


def share_started(step: int, until: int) -> float:
    """The share of groups that begin behind an expert's turns: max(0, 1 − g / g0).

    Source: SnapshotRL 2024, arXiv:2403.00673.
    """
    return max(0.0, 1 - step / until)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPrefix:
    """Groups start after the first turns of an expert, late ones first, for `anneal_updates` updates (SnapshotRL).

    All episodes of a group begin at the same place. The expert's turns are read and not trained.

    Source: SnapshotRL 2024, arXiv:2403.00673; the form for language agents is ours.
    """

    anneal_updates: int
    """Number of updates until every episode starts from the initial state."""

    def __post_init__(self) -> None:
        if self.anneal_updates < 1:
            raise OptionError("anneal_updates", f"one update or more, got {self.anneal_updates}")

    def check(self, source: Source, first: int) -> None:
        """Whether there is somebody to begin behind.

        Raises:
            TaskError: The source has no expert.
        """
        if not isinstance(source, Expert):
            raise TaskError("needs the turns of an expert, and the task source has none; choose one with an expert")

    async def __call__(self, occasion: EpisodeKey, guide: Demonstrator, /) -> StartPrefix | None:
        """See `Start`."""
        share = share_started(occasion.step, self.anneal_updates)
        if occasion.random("start").random() >= share:
            return None
        shown, world = await guide.demonstration(occasion.task)
        inner = len(shown.turns) - 1
        if not shown.ended.valid or inner < 1:
            return None
        count = max(1, math.ceil(share * inner))
        return StartPrefix(spliced(shown.turns[:count]), world)


def spliced(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Turns to begin behind: their actions are read, and not trained."""
    return tuple(replace(turn, action=Tokens.written(turn.action.ids, Author.INSERTED)) for turn in turns)
