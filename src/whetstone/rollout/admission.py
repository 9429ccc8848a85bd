"""How far may sampling run ahead of learning?

    started ≤ (admit_ahead + version + 1) · groups_per_update

`started` counts groups running and groups handed on; one that was thrown away leaves the count, or admission
would starve. With `admit_ahead` 0 the next groups start only after the update: on-policy.

Easy to get wrong: this bounds staleness only where groups are consumed in the order they were started. And a
run that resumes at version v has started v · groups_per_update groups, not none.

Source: Fu et al. 2025 (AReaL), arXiv:2505.24298, staleness-aware admission.
"""

from __future__ import annotations

import asyncio


class Admission:
    """Lets groups in, as many as the version allows.

    Args:
        groups_per_update: Groups one update consumes.
        admit_ahead: Updates sampling may be ahead of learning.
        version: Updates made so far.

    Raises:
        ValueError: No group per update, or a negative distance.
    """

    def __init__(self, groups_per_update: int, *, admit_ahead: int = 0, version: int = 0) -> None:
        if groups_per_update < 1 or admit_ahead < 0 or version < 0:
            raise ValueError(
                "groups_per_update is one or more, admit_ahead and version zero or more; "
                f"got {groups_per_update}, {admit_ahead}, {version}"
            )
        self.groups_per_update, self.admit_ahead, self.version = groups_per_update, admit_ahead, version
        self.started = version * groups_per_update
        self._changed = asyncio.Event()

    @property
    def room(self) -> int:
        """How many groups may start now; 0 or less: none."""
        return (self.admit_ahead + self.version + 1) * self.groups_per_update - self.started

    async def enter(self) -> None:
        """Wait until one more group may start, and count it as started."""
        while self.room <= 0:
            self._changed.clear()
            await self._changed.wait()
        self.started += 1

    def reject(self) -> None:
        """A started group was thrown away: another may take its place."""
        self.started -= 1
        self._changed.set()

    def advance(self, version: int) -> None:
        """Updates were made."""
        self.version = version
        self._changed.set()
