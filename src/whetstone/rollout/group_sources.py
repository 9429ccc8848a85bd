"""Sources of groups that are mixed with the sampled groups of an update."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from whetstone.environments import Environment
from whetstone.provenance import Provenance
from whetstone.recipe import StoredMixtureSettings
from whetstone.trajectory import Group, OffPolicy


class GroupSource(Protocol):
    """An endless sequence of groups: stored, imagined or of a custom origin.

    A source with a state is `Stateful`, one with resources has `close()`, one whose groups the policy plays is
    `PlaysEpisodes`, and one whose groups are not `replayed` declares their `provenance`.
    """

    async def groups(self, first: int, count: int, /) -> Sequence[Group]:
        """Return `count` groups from position `first` on.

        They are the same whenever these positions are requested again.
        """
        ...


class PlaysEpisodes(Protocol):
    """A source whose groups the policy plays in the run, in another environment than that of sampled groups.

    Its groups are sampled with the weights that an update starts with, and an update waits for them without a time
    limit; the deadlines of episodes bound the wait.
    """

    environment: Callable[[], Environment]
    """Creates the environment of an episode."""

    def open(self, play: Callable[[int], Awaitable[Group]], /) -> None:
        """Receive the function that returns the group at a position."""
        ...


class ImaginedGroups:
    """Groups that the policy plays in an imagined environment, such as one whose tools a model answers.

    Source: Sutton 1991 (Dyna), SIGART Bulletin 2(4); for language models DynaWeb 2026, arXiv:2601.22149.

    Args:
        environment: Creates the environment of an episode.
    """

    provenance = Provenance.IMAGINED

    def __init__(self, environment: Callable[[], Environment]) -> None:
        self.environment = environment
        self._play: Callable[[int], Awaitable[Group]] | None = None

    def open(self, play: Callable[[int], Awaitable[Group]], /) -> None:
        """See `PlaysEpisodes`."""
        self._play = play

    async def groups(self, first: int, count: int, /) -> Sequence[Group]:
        """See `GroupSource`."""
        assert self._play is not None
        return await asyncio.gather(*map(self._play, range(first, first + count)))


@dataclass(frozen=True, slots=True)
class MixedSource:
    """A source and its part of an update."""

    source: GroupSource
    fraction: float
    """Fraction of all groups of an update that come from the source."""
    timeout_seconds: float | None = None
    """Time that an update waits for the source; None: no limit."""
    mixture: StoredMixtureSettings | None = None
    """Use of the groups; None: in the same updates as sampled groups."""
    off_policy: OffPolicy | None = None
    """Denominator of the ratios of stored tokens; None: the stored log-probs if the groups have them."""

    @property
    def mode(self) -> str:
        """Return `joint`, `critic_only` or `alternating`; see `reinforcement.offline_mixture.mode`."""
        return "joint" if self.mixture is None else self.mixture.mode
