"""Python, a shell and files, in a sandbox: those named together share an episode's folder.

Easy to get wrong: whether variables live from call to call is something models learn. One that was taught that they do
runs into missing names where they do not; the other way round it writes everything anew. So it is said in the tool's
description, chosen in the recipe, and kept with every trajectory (`declared`).
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from whetstone.chat.message import Image, Text
from whetstone.errors import InfrastructureError, ToolError
from whetstone.plugins import OptionError
from whetstone.sandbox import Ending, Isolation, Limits, Outcome, Session, shared_sandbox
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.protocol import Outcome as Said
from whetstone.tools.schema import Tool, tool_from_function

Persistence = Literal["persistent", "reset"]
_KEPT = {
    "persistent": "Variables and files last from call to call.",
    "reset": "Each call begins with nothing: no variables, no files of earlier calls.",
}


class _InSandbox:
    """What tools of an episode's session share: the first that is opened makes it, and the others find it."""

    def __init__(
        self,
        sandbox: str,
        container: Sequence[str],
        preload: Sequence[str],
        limits: Limits | None,
        persistence: Persistence,
        files: Mapping[str, str] | None = None,
    ) -> None:
        for path in files or ():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise OptionError("files", f"{path} is not in the folder of the episode; a path below it")
        for module in preload if not container else ():
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise OptionError("preload", f"there is no module {module}")
        self._pool = shared_sandbox(sandbox, tuple(preload), tuple(container))  # said before anything begins
        self.effects = None if container or sandbox == Isolation.UNSAFE else "read"
        """Effect of the code; unknown if a container of the user's or nothing confines it."""
        self._limits, self._persistence, self._files = limits or Limits(), persistence, files or {}
        self.must_agree = {
            "sandbox": sandbox,
            "container": list(container),
            "preload": list(preload),
            "limits": self._limits,
            "persistence": persistence,
        }
        self._session: Session | None = None

    async def open(self, episode: Episode) -> None:
        """Begin with a clean interpreter, and the files there are."""
        session: Session | None = episode.shared.get("session")
        if session is None:
            persistent = self._persistence == "persistent"
            session = self._pool.session(persistent=persistent, seed=episode.seed, limits=self._limits)
            episode.shared["session"] = session
        for path, text in {**self._files, **episode.task.private.get("files", {})}.items():
            session.files[path] = text.encode()
        self._session = session

    async def close(self) -> None:
        """End it."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def _there(self) -> Session:
        if self._session is None:
            raise InfrastructureError("the tool was called before its episode began")
        return self._session


class Python(_InSandbox):
    """A Python interpreter in a sandbox: one tool, `python`.

    Args:
        persistence: `persistent`: variables and files live for the episode. `reset`: each call has a new interpreter
            and an empty folder.
        sandbox: `auto`: the strongest isolation this machine offers; or one by name. `unsafe` has to be written out.
        container: What starts a container, up to and with the Python in it, with `{guest}` and `{sockets}` where
            folders are mounted on `/sandbox` and `/run/whetstone`.
        limits: What a call may use; see `Limits`.
        preload: Modules imported before the first call, beside the usual ones.
        files: Contents by path, there when an episode begins; a task's own are under `files` in its private data.
    """

    def __init__(
        self,
        *,
        persistence: Persistence = "persistent",
        sandbox: str = "auto",
        container: Sequence[str] = (),
        limits: Limits | None = None,
        preload: Sequence[str] = (),
        files: dict[str, str] | None = None,
    ) -> None:
        super().__init__(sandbox, container, preload, limits, persistence, files)
        self.declared = {"python": persistence}

    def tools(self) -> list[Tool]:
        """The one tool."""
        return [_described(self.python, _KEPT[self._persistence])]

    async def python(self, code: str) -> Result:
        """Run Python.

        What is printed and the value of the last expression are shown, and plots.

        Args:
            code: The code; it may have several lines.
        """
        return shown_outcome(await self._there.python(code))


class Shell(_InSandbox):
    """A shell in a sandbox: one tool, `shell`. Its folder is that of `python` and `files` where they are there, too.

    Args:
        persistence: As of `Python`; must be the same there.
        sandbox: As of `Python`.
        container: As of `Python`.
        limits: As of `Python`.
        preload: As of `Python`.
    """

    def __init__(
        self,
        *,
        persistence: Persistence = "persistent",
        sandbox: str = "auto",
        container: Sequence[str] = (),
        limits: Limits | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(sandbox, container, preload, limits, persistence)
        self.declared = {"shell": persistence}

    def tools(self) -> list[Tool]:
        """The one tool."""
        kept = "Files and the current folder last" if self._persistence == "persistent" else "Nothing lasts"
        return [_described(self.shell, f"{kept} from call to call.")]

    async def shell(self, command: str) -> Result:
        """Run a command with `sh`.

        Args:
            command: The command; it may have several lines.
        """
        return shown_outcome(await self._there.shell(command))


class Files(_InSandbox):
    """Looking at and changing files in a sandbox: `view`, `create`, `str_replace`, `grep`.

    Args:
        sandbox: As of `Python`.
        container: As of `Python`.
        limits: As of `Python`.
        preload: As of `Python`.
        files: Contents by path, there when an episode begins; a task's own are under `files` in its private data.
    """

    def __init__(
        self,
        *,
        sandbox: str = "auto",
        container: Sequence[str] = (),
        limits: Limits | None = None,
        preload: Sequence[str] = (),
        files: dict[str, str] | None = None,
    ) -> None:
        super().__init__(sandbox, container, preload, limits, "persistent", files)

    async def view(self, path: str = ".", first: int = 1, last: int = -1) -> str:
        """Show a file with line numbers, or what is in a folder.

        Args:
            path: The file or folder.
            first: The first line shown.
            last: The last line shown; -1 for the end.
        """
        return await self._done("view", path=path, first=first, last=last)

    async def create(self, path: str, text: str) -> str:
        """Write a file, in place of any that is there.

        Args:
            path: The file; folders on the way are made.
            text: All of what is in it.
        """
        return await self._done("create", path=path, text=text)

    async def str_replace(self, path: str, old: str, new: str) -> str:
        """Replace a text that is in a file exactly once, and show what is around it then.

        Args:
            path: The file.
            old: The text, with enough around it to be there only once.
            new: What stands there instead.
        """
        return await self._done("str_replace", path=path, old=old, new=new)

    async def grep(self, pattern: str, path: str = ".") -> str:
        """Find the lines that match a regular expression.

        Args:
            pattern: The expression.
            path: A file, or a folder with all below it.
        """
        return await self._done("grep", pattern=pattern, path=path)

    async def _done(self, function: str, **arguments: str | int) -> str:
        outcome = await self._there.folder(function, **arguments)
        if outcome.ending is not Ending.OK or outcome.value is None:
            raise ToolError(outcome.error or "no answer")
        return outcome.value


def _described(method: Callable[..., Any], kept: str) -> Tool:
    """The tool, which says how long things last and sees to its own time."""
    tool = tool_from_function(method)
    return replace(tool, spec=replace(tool.spec, description=f"{tool.spec.description}\n{kept}"), keeps_time=True)


def shown_outcome(outcome: Outcome) -> Result:
    """What a model is shown of a call: what was printed, then the value or the error, then pictures."""
    pieces = [outcome.output.rstrip("\n")] if outcome.output else []
    if outcome.value is not None:
        pieces.append(outcome.value)
    if outcome.error:
        pieces.append(outcome.error if outcome.ending is Ending.ERROR else f"error: {outcome.error}")
    if outcome.exit_code:
        pieces.append(f"[exit code {outcome.exit_code}]")
    failed = outcome.ending is not Ending.OK or bool(outcome.exit_code)
    late = outcome.ending in (Ending.TIMEOUT, Ending.CPU)
    said: Said = "timeout" if late else "tool_error" if failed else "ok"
    images = tuple(Image(f"data:image/png;base64,{base64.b64encode(image).decode()}") for image in outcome.images)
    text = remove_host_paths("\n".join(pieces)) or ("" if images else "[nothing was printed]")
    return Result((*((Text(text),) if text else ()), *images), said)
