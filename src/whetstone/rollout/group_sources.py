"""Sources of groups, such as offline datasets, that are mixed with the sampled groups of an update."""

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
    """Endless sequence of groups for updates, such as stored, imagined or user-defined ones.

    A source with a state is `Stateful`, one with resources has `close()`, one whose groups the policy plays is
    `PlaysEpisodes`, and one whose groups are not `replayed` declares their `provenance`.
    """

    async def groups(self, first: int, count: int, /) -> Sequence[Group]:
        """Return `count` groups from position `first` on.

        Requests for the same positions must return the same groups, so that a resumed run trains on the same data.
        """
        ...


class PlaysEpisodes(Protocol):
    """Group source whose groups the policy plays during the run, in another environment than that of sampled groups.

    Its groups are sampled with the weights that an update starts with. An update waits for them without a time limit;
    the deadlines of episodes bound the wait.
    """

    environment: Callable[[], Environment]
    """Factory that creates the environment of an episode."""

    def open(self, play: Callable[[int], Awaitable[Group]], /) -> None:
        """Receive the function that plays and returns the group at a position.

        Called once before the first update.
        """
        ...


class ImaginedGroups:
    """Group source that plays the policy in an imagined environment, such as one whose tools a model simulates.

    Source: Sutton 1991 (Dyna), SIGART Bulletin 2(4); for language models DynaWeb 2026, arXiv:2601.22149.

    Args:
        environment: Factory that creates the imagined environment of an episode.
    """

    provenance = Provenance.IMAGINED

    def __init__(self, environment: Callable[[], Environment]) -> None:
        self.environment = environment
        self._play: Callable[[int], Awaitable[Group]] | None = None

    def open(self, play: Callable[[int], Awaitable[Group]], /) -> None:
        """Store the function that plays a group; see `PlaysEpisodes.open`."""
        self._play = play

    async def groups(self, first: int, count: int, /) -> Sequence[Group]:
        """Play the groups at these positions concurrently; see `GroupSource.groups`."""
        assert self._play is not None
        return await asyncio.gather(*map(self._play, range(first, first + count)))


@dataclass(frozen=True, slots=True)
class MixedSource:
    """Group source with its fraction of each update."""

    source: GroupSource
    fraction: float
    """Fraction of all groups of an update that come from the source."""
    timeout_seconds: float | None = None
    """Maximum number of seconds that an update waits for groups of the source; None: unlimited."""
    mixture: StoredMixtureSettings | None = None
    """Settings of the offline mixture; None: the groups are part of the same updates as sampled groups."""
    off_policy: OffPolicy | None = None
    """Log-probs in the denominator of the ratios of stored tokens; None: the stored log-probs if the groups have them.
    """

    @property
    def mode(self) -> str:
        """Return the mode of the mixture: `joint`, `critic_only` or `alternating`.

        See `reinforcement.offline_mixture.mode`.
        """
        return "joint" if self.mixture is None else self.mixture.mode
