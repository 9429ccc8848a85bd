"""Staleness control: limits how far sampling may run ahead of training.

    started ≤ (admit_ahead + version + 1) · groups_per_update

`started` counts running groups, groups that wait to be consumed, and consumed groups; a discarded group is subtracted,
or admission would starve. With `admit_ahead` 0 the next groups start only after the update: on-policy.

Note:
    Groups count as started until their update has ended. Otherwise the next ones would start during the update, with
    weights that are about to be replaced. A run that resumes at version v has started v · groups_per_update groups and
    those that are not yet consumed, not none.

Source: AReaL 2025, arXiv:2505.24298, staleness-aware admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping


class Admission:
    """Staleness control of a run: admits groups as far as the version of the weights allows.

    `GroupStream` awaits `admit_group` before each group and calls `record_update` after each update.

    Args:
        groups_per_update: Number of groups that one update consumes.
        admit_ahead: Number of updates that sampling may be ahead of training; 0: on-policy.
        version: Number of updates made so far.
        total: Total number of groups of the run; None: unlimited.
        live: Admitted groups that are not consumed yet: group number → version at admission.

    Raises:
        ValueError: If `groups_per_update` is below 1, or `admit_ahead` or `version` below 0.
    """

    def __init__(
        self,
        groups_per_update: int,
        *,
        admit_ahead: int = 0,
        version: int = 0,
        total: int | None = None,
        live: Mapping[int, int] | None = None,
    ) -> None:
        if groups_per_update < 1 or admit_ahead < 0 or version < 0:
            raise ValueError(
                "groups_per_update must be at least 1, admit_ahead and version at least 0; "
                f"got {groups_per_update}, {admit_ahead}, {version}"
            )
        self.groups_per_update, self.admit_ahead, self.version = groups_per_update, admit_ahead, version
        self.total = total
        self.live = dict(live or {})
        """Admitted groups that are not consumed yet: number → version at admission."""
        self.withdrawn = 0
        """Number of groups that the next update lacks."""
        self._changed = asyncio.Event()

    @property
    def num_wanted(self) -> int:
        """Return the number of groups that the next update takes: `groups_per_update` less withdrawn groups."""
        return self.groups_per_update - self.withdrawn

    @property
    def num_started(self) -> int:
        """Return the number of admitted groups that were not discarded; each past update counts with all its groups."""
        return self.version * self.groups_per_update + len(self.live) + self.withdrawn

    @property
    def free_slots(self) -> int:
        """Return the number of groups that may start now; 0 or less: none."""
        allowed = (self.admit_ahead + self.version + 1) * self.groups_per_update
        return (allowed if self.total is None else min(allowed, self.total)) - self.num_started

    async def admit_group(self, number: int) -> bool:
        """Wait until the group with this number may start, and count it as started.

        Returns:
            False if the group was admitted before, for example before a restart.
        """
        if number in self.live:
            return False
        while self.free_slots <= 0:
            self._changed.clear()
            await self._changed.wait()
        self.live[number] = self.version
        return True

    def discard_group(self, number: int) -> None:
        """Remove a started group that is not used; another group may start instead."""
        del self.live[number]
        self._changed.set()

    def withdraw_group(self, number: int) -> None:
        """Remove a started group without a replacement before the next update, which then takes one group less."""
        del self.live[number]
        self.withdrawn += 1
        self._changed.set()

    def record_update(self, consumed: Iterable[int]) -> None:
        """Record an update that consumed these groups, so that further groups may start."""
        for number in consumed:
            del self.live[number]
        self.version += 1
        self.withdrawn = 0
        self._changed.set()
