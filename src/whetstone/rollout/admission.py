"""How far may sampling run ahead of learning?

    started ≤ (admit_ahead + version + 1) · groups_per_update

`started` counts groups running, groups that wait to be consumed, and groups consumed; one that was thrown away leaves
the count, or admission would starve. With `admit_ahead` 0 the next groups start only after the update: on-policy.

Easy to get wrong: groups count as started until the update they went into is over, or the next ones would begin
during it, under weights about to be replaced. And a run that resumes at version v has started v · groups_per_update
groups and those it still holds, not none.

Source: AReaL 2025, arXiv:2505.24298, staleness-aware admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping


class Admission:
    """Lets groups in, as many as the version allows.

    Args:
        groups_per_update: Groups one update consumes.
        admit_ahead: Updates sampling may be ahead of learning.
        version: Updates made so far.
        total: Groups there are to be in all; None: without end.
        live: Groups let in before and not consumed yet: number → the version at which each was let in.

    Raises:
        ValueError: No group per update, or a negative distance.
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
                "groups_per_update is one or more, admit_ahead and version zero or more; "
                f"got {groups_per_update}, {admit_ahead}, {version}"
            )
        self.groups_per_update, self.admit_ahead, self.version = groups_per_update, admit_ahead, version
        self.total = total
        self.live = dict(live or {})
        """Groups let in and not consumed: number → the version at which each was let in."""
        self.withdrawn = 0
        """Groups the next update will have to do without."""
        self._changed = asyncio.Event()

    @property
    def wanted(self) -> int:
        """Groups the next update takes."""
        return self.groups_per_update - self.withdrawn

    @property
    def started(self) -> int:
        """Groups let in that were not thrown away; an update counts as if it had had all its groups."""
        return self.version * self.groups_per_update + len(self.live) + self.withdrawn

    @property
    def room(self) -> int:
        """How many groups may start now; 0 or less: none."""
        allowed = (self.admit_ahead + self.version + 1) * self.groups_per_update
        return (allowed if self.total is None else min(allowed, self.total)) - self.started

    async def enter(self, number: int) -> bool:
        """Wait until group `number` may start, and count it as started; False: it was let in before."""
        if number in self.live:
            return False
        while self.room <= 0:
            self._changed.clear()
            await self._changed.wait()
        self.live[number] = self.version
        return True

    def reject(self, number: int) -> None:
        """A started group was thrown away: another may take its place."""
        del self.live[number]
        self._changed.set()

    def withdraw(self, number: int) -> None:
        """A started group was thrown away, and no other is to take its place before the next update."""
        del self.live[number]
        self.withdrawn += 1
        self._changed.set()

    def advance(self, consumed: Iterable[int]) -> None:
        """One more update was made, of these groups."""
        for number in consumed:
            del self.live[number]
        self.version += 1
        self.withdrawn = 0
        self._changed.set()
