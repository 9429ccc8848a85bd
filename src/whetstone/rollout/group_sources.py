"""Sources of groups that are mixed with the sampled groups of an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from whetstone.recipe import StoredMixtureSettings
from whetstone.trajectory import Group, OffPolicy


class GroupSource(Protocol):
    """An endless sequence of groups: stored, imagined or of a custom origin.

    A source with a state is `Stateful`, one with resources has `close()`, and one whose groups are not `replayed`
    declares their `provenance`.
    """

    async def groups(self, first: int, count: int, /) -> Sequence[Group]:
        """Return `count` groups from position `first` on; the same whenever these positions are requested again."""
        ...


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
        """`joint`, `critic_only` or `alternating`; see `reinforcement.offline_mixture.mode`."""
        return "joint" if self.mixture is None else self.mixture.mode
