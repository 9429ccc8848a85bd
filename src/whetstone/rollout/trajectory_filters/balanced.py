"""Trajectory filter that keeps a fixed number per group, with at least one success and one failure if available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from whetstone.plugins import OptionError
from whetstone.trajectory import Group, RemovalScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """Keeps `keep` random trajectories of each group, including one success and one failure if available (DART).

    Groups of at most `keep` trajectories are unchanged.

    Source: DART 2025, arXiv:2509.23866, its code (`trainable_filter.py`).
    """

    keep: int = 8
    """Number of trajectories kept per group."""

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise OptionError("keep", f"must be at least 2, got {self.keep}")

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Mark the trajectories of a step that are not trained; see `TrajectoryFilter.__call__`."""
        return [self._of(group, draw) for group in groups]

    def _of(self, group: Group, draw: Random) -> Group:
        counted = group.counted
        if len(counted) <= self.keep:
            return group
        positive = [t.id for t in counted if t.score is not None and t.score.value > 0]
        negative = [t.id for t in counted if t.score is not None and t.score.value <= 0]
        stays = [draw.choice(of_kind) for of_kind in (positive, negative) if of_kind]
        rest = [t.id for t in counted if t.id not in stays]
        stays += draw.sample(rest, self.keep - len(stays))
        removed = {t.id for t in counted} - set(stays)
        marked = (
            replace(t, removal=RemovalScope.BEFORE_BASELINE) if t.id in removed else t for t in group.trajectories
        )
        return replace(group, trajectories=tuple(marked))
