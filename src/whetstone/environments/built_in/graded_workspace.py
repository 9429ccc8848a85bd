"""Base of components that judge an episode by the folder of its tools; listed after the tools that have the folder."""

from __future__ import annotations

from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox import Session
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task


class WorkspaceVerdict:
    """Receives the session that `shell`, `python` or `files` share."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._task: Task | None = None

    def tools(self) -> list[Any]:
        """Return no tools."""
        return []

    def open(self, episode: Episode) -> None:
        """Get the session of the folder.

        Raises:
            InfrastructureError: If no preceding tool has one.
        """
        self._session, self._task = episode.shared.get("session"), episode.task
        if self._session is None:
            raise InfrastructureError(f"{type(self).__name__}: no folder to read; list it after shell, python or files")

    @property
    def session_and_task(self) -> tuple[Session, Task]:
        """Return the session and the task."""
        assert self._session is not None
        assert self._task is not None
        return self._session, self._task
