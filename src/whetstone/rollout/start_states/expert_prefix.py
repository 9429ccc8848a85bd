"""Start states from episodes of an expert or a frozen model, moved back to the reset state (reverse curriculum).

Note:
    The success rate from such a state does not describe the task, so these episodes leave all statistics of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Demonstrator, EpisodeKey, StartPrefix
from whetstone.tasks.protocol import Expert, Source
from whetstone.tools import FrozenModel, find_model
from whetstone.trajectory import Author, Tokens, Turn


def start_fraction(step: int, until: int) -> float:
    """Return the fraction of groups that start after an expert's turns at update g: max(0, 1 − g / g0), g0 = `until`.

    Source: SnapshotRL 2024, arXiv:2403.00673.
    """
    return max(0.0, 1 - step / until)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPrefix:
    """Starts groups after the first turns of an expert's episode, for the first `anneal_updates` updates (SnapshotRL).

    The prefix becomes shorter over training. All episodes of a group start in the same state. The expert's turns are
    read and not trained. With `model`, a frozen model of the recipe plays instead of the expert (a guide policy that
    rolls in); it need not solve the task.

    Source: SnapshotRL 2024, arXiv:2403.00673; the form for language agents is an addition. A guide model: Chang et al.
    2023 (Learning to Generate Better Than Your LLM), arXiv:2306.11816.
    """

    anneal_updates: int
    """Number of updates until every episode starts from the reset state."""
    model: str = ""
    """Name of one of the recipe's `models` that plays the prefix; empty: the expert of the task source."""
    models: Mapping[str, FrozenModel] | None = None
    """By name; filled in from the recipe's `models`."""

    def __post_init__(self) -> None:
        if self.anneal_updates < 1:
            raise OptionError("anneal_updates", f"must be at least 1 update, got {self.anneal_updates}")
        if self.model:
            find_model(self.models, self.model)

    def check(self, source: Source, first: int) -> None:
        """Check that the task source has an expert; see `ChecksSource.check`.

        Raises:
            TaskError: If it has none.
        """
        if not self.model and not isinstance(source, Expert):
            raise TaskError("needs an expert, and the task source has none; choose a source with an expert")

    async def __call__(self, episode_key: EpisodeKey, demonstrator: Demonstrator, /) -> StartPrefix | None:
        """Return the turns that precede the episodes of a group, or None; see `Start.__call__`."""
        share = start_fraction(episode_key.step, self.anneal_updates)
        if episode_key.random("start").random() >= share:
            return None
        guide = find_model(self.models, self.model) if self.model else None
        demonstration, seed = await demonstrator.demonstration(episode_key.task, model=guide)
        inner = len(demonstration.turns) - 1
        if not demonstration.ended.valid or inner < 1:
            return None
        count = max(1, math.ceil(share * inner))
        return StartPrefix(as_untrained_turns(demonstration.turns[:count]), seed)


def as_untrained_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return the turns with all action tokens marked as inserted, so that they are read and not trained."""
    return tuple(replace(turn, action=Tokens.from_ids(turn.action.ids, Author.INSERTED)) for turn in turns)
