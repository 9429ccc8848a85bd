"""`WorkspaceVerdict`: base class of components that judge an episode by the folder of its tools."""

from __future__ import annotations

from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.sandbox.protocol import SandboxSession
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task


class WorkspaceVerdict:
    """Base class of a component without tools that judges the folder of an episode.

    A subclass implements `verdict`. In the list of tools, the component follows the tool whose folder it reads:
    `shell`, `python` or `files`, which share a session.
    """

    def __init__(self) -> None:
        self._session: SandboxSession | None = None
        self._task: Task | None = None

    def tools(self) -> list[Any]:
        """Return an empty list: the component only judges and has no tools."""
        return []

    def open(self, episode: Episode) -> None:
        """Store the task and the session of the folder.

        Raises:
            InfrastructureError: If no preceding tool has a session.
        """
        self._session, self._task = episode.shared.get("session"), episode.task
        if self._session is None:
            raise InfrastructureError(
                f"{type(self).__name__}: there is no folder to read; list the component after shell, python or files"
            )

    @property
    def session_and_task(self) -> tuple[SandboxSession, Task]:
        """Return the session of the folder and the task; only after `open`."""
        assert self._session is not None
        assert self._task is not None
        return self._session, self._task
