"""Who judges an episode by the folder its tools worked in: no tool, named behind those that have it."""

from __future__ import annotations

from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox import Session
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task


class BesideFolder:
    """Hears of the session that `shell`, `python` or `files` share."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._task: Task | None = None

    def tools(self) -> list[Any]:
        """None."""
        return []

    def open(self, episode: Episode) -> None:
        """Hear of the folder.

        Raises:
            InfrastructureError: No tool before it has one.
        """
        self._session, self._task = episode.shared.get("session"), episode.task
        if self._session is None:
            raise InfrastructureError(
                f"{type(self).__name__} stands behind shell, python or files, whose folder it reads"
            )

    @property
    def there(self) -> tuple[Session, Task]:
        """The session, and the task."""
        assert self._session is not None
        assert self._task is not None
        return self._session, self._task
