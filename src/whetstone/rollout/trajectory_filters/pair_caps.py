"""Trajectory filter that caps successes and failures per task, so that easy tasks do not dominate the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from whetstone.trajectory import Group, RemovalScope


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCaps:
    """Keeps at most `max_per_outcome` successes and as many failures per group, the first ones (Agent-RLVR).

    Source: Agent-RLVR 2025, arXiv:2506.11425; the cap is an addition.
    """

    max_per_outcome: int = 2
    """Maximum number of successes, and of failures, per group."""

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Mark the trajectories of a step that are not trained; see `TrajectoryFilter.__call__`."""
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> Group:
        stays = {
            t.id
            for solved in (True, False)
            for t in [t for t in group.counted if t.solved is solved][: self.max_per_outcome]
        }
        removed = {t.id for t in group.counted} - stays
        marked = (
            replace(t, removal=RemovalScope.BEFORE_BASELINE) if t.id in removed else t for t in group.trajectories
        )
        return replace(group, trajectories=tuple(marked))
