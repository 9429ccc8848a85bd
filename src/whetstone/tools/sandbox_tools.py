"""Sandbox tools: Python, a shell and files. Tools in the same recipe share the session of the episode.

Note:
    Models learn whether variables persist between calls. A model trained with persistence accesses missing names
    without it; a model trained without it defines everything again. The setting is therefore in the tool's description
    and in the recipe, and is recorded with every trajectory (`declared`).
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from whetstone.chat.message import Image, Text, ToolCall
from whetstone.errors import InfrastructureError, ToolError
from whetstone.masking import mask_secrets
from whetstone.plugins import OptionError
from whetstone.sandbox import Ending, Isolation, Limits, Outcome, shared_sandbox
from whetstone.sandbox.containers.container_options import CONTAINER_LIMITS, parse_container_options
from whetstone.sandbox.containers.container_pool import shared_containers
from whetstone.sandbox.containers.harbor_session import shared_harbor
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.sandbox.protocol import SandboxSession, SessionPool
from whetstone.tools.execution import failed_result
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.protocol import Outcome as Status
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.trajectory import InnerCall
from whetstone.truncate_text import truncate_middle

Persistence = Literal["persistent", "reset"]
_MAX_RECORDED_CHARACTERS = 4000
_TOOLS_IN_CODE = "The code can call the other tools as functions that return their text: tools.NAME(...)."
_KEPT = {
    "persistent": "Variables and files last from call to call.",
    "reset": "Each call begins with nothing: no variables, no files of earlier calls.",
}


class _InSandbox:
    """Base class of tools that share the sandbox session of an episode.

    The tool that is opened first creates it.
    """

    def __init__(
        self,
        sandbox: str | Mapping[str, Any],
        container: Sequence[str],
        preload: Sequence[str],
        limits: Limits | None,
        persistence: Persistence,
        files: Mapping[str, str] | None = None,
    ) -> None:
        has_image = not isinstance(sandbox, str)
        if has_image and (container or preload):
            raise OptionError("sandbox", "a container with an image has no `container` command and no `preload`")
        for path in files or ():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise OptionError("files", f"{path} is outside of the folder of the episode; use a relative path")
        for module in preload if not container else ():
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise OptionError("preload", f"no module named {module}")
        # both report an error before anything starts
        self.session_pool: SessionPool
        """Factory of the sessions of episodes."""
        if isinstance(sandbox, str):
            self.session_pool = shared_sandbox(sandbox, tuple(preload), tuple(container))
            is_closed = not container and sandbox != Isolation.UNSAFE
        elif sandbox.get("container") == "harbor":
            environments = self.session_pool = shared_harbor(sandbox)
            is_closed = environments.options.network == "none"
        else:
            options = parse_container_options(sandbox)
            self.session_pool = shared_containers(options)
            is_closed = options.network == "none"
        self.effects = "read" if is_closed else None
        """Effect of the code; unknown with a custom container, with a network or without isolation."""
        self.stateless = is_closed and persistence == "reset"
        """Whether a result depends only on the call: each call has a new session, without access to the machine."""
        self.keeps_files = persistence == "persistent"
        """Whether files last from call to call."""
        self._limits = limits or (CONTAINER_LIMITS if has_image else Limits())
        self._persistence, self._files = persistence, files or {}
        self.must_agree = {
            "sandbox": sandbox,
            "container": list(container),
            "preload": list(preload),
            "limits": self._limits,
            "persistence": persistence,
        }
        self._session: SandboxSession | None = None
        self._toolset: Any = None

    async def open(self, episode: Episode) -> None:
        """Join or create the session of the episode, and add the configured files and those of the task."""
        session: SandboxSession | None = episode.shared.get("session")
        if session is None:
            persistent = self._persistence == "persistent"
            session = self.session_pool.session(persistent=persistent, seed=episode.seed, limits=self._limits)
            episode.shared["session"] = session
        for path, text in {**self._files, **episode.task.private.get("files", {})}.items():
            session.files[path] = text.encode()
        self._session, self._toolset = session, episode.shared.get("toolset")

    async def close(self) -> None:
        """Close the session of the episode."""
        if self._session is not None:
            closing, self._session = self._session.close(), None
            if closing is not None:
                await closing

    @property
    def _required_session(self) -> SandboxSession:
        if self._session is None:
            raise InfrastructureError("sandbox: the tool was called before `open`; open the toolset first")
        return self._session


class Python(_InSandbox):
    """Python interpreter in a sandbox: one tool, `python`.

    Args:
        persistence: `persistent`: variables and files live for the episode. `reset`: each call has a new interpreter
            and an empty folder.
        sandbox: `auto`: the strongest isolation available here; or the name of a layer. `unsafe` must be set
            explicitly.
        container: Command that starts a container, up to and including its Python, with the placeholders `{guest}` and
            `{sockets}` for folders that are mounted at `/sandbox` and `/run/whetstone`.
        limits: Resource limits of a call; see `Limits`.
        preload: Modules imported before the first call, in addition to the default ones.
        files: Contents by path, present at the start of each episode. A task can add files under `files` in its private
            data.
        max_tool_calls: Maximum number of calls of other tools that the code of one call can make, as
            `tools.NAME(…)`; 0: code cannot call tools.

    Raises:
        OptionError: If `max_tool_calls` is negative.
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
        max_tool_calls: int = 0,
    ) -> None:
        super().__init__(sandbox, container, preload, limits, persistence, files)
        if max_tool_calls < 0:
            raise OptionError("max_tool_calls", f"must be 0 or more, got {max_tool_calls}")
        self.max_tool_calls = max_tool_calls
        self.declared = {"python": persistence}

    def tools(self) -> list[Tool]:
        """Return the tool."""
        note = f"{_KEPT[self._persistence]}\n{_TOOLS_IN_CODE}" if self.max_tool_calls else _KEPT[self._persistence]
        return [_add_note(self.python, note)]

    async def python(self, code: str) -> Result:
        """Run Python.

        What is printed and the value of the last expression are shown, and plots.

        Args:
            code: The code; it may have several lines.
        """
        if not self.max_tool_calls:
            return shown_outcome(await self._required_session.python(code))
        tools = _ToolsInCode(self._toolset, self.max_tool_calls)
        outcome = await self._required_session.python(code, tools=tools)
        return tools.add_calls(shown_outcome(outcome))


class _ToolsInCode:
    """Tools that the code of one call can call, with a record of each call.

    Tools that use the sandbox session of the code itself are left out.

    Args:
        toolset: Toolset of the episode.
        max_calls: Maximum number of calls; further calls are errors in the code.
    """

    def __init__(self, toolset: Any, max_calls: int) -> None:
        self._toolset, self._max_calls = toolset, max_calls
        self._calls: list[InnerCall] = []
        self._last: Any = None
        self.parameter_names = {
            name: list(tool.spec.properties)
            for name, tool in (toolset.available_tools if toolset is not None else {}).items()
            if not isinstance(getattr(tool.function, "__self__", None), _InSandbox)
        }

    async def call_tool(self, name: Any, arguments: Any) -> dict[str, Any]:
        """Call a tool with the policy, budget and limits of any other call; see `CodeTools`."""
        if self._has_ended:
            return {"ended": True}
        if len(self._calls) == self._max_calls:
            return {"error": f"the code of one call can call tools at most {self._max_calls} times"}
        if not isinstance(name, str) or name not in self.parameter_names:
            return {"error": f"there is no tool {str(name)[:200]!r}"}
        text = json.dumps(arguments)
        answer = self._last = await self._toolset.call(ToolCall(name, text))
        recorded = truncate_middle(sanitize_text(mask_secrets(text)), _MAX_RECORDED_CHARACTERS)[0]
        self._calls.append(InnerCall(answer.record, recorded, answer.text))
        if self._has_ended:
            return {"ended": True}
        if answer.record.outcome == "ok":
            return {"text": answer.text}
        return {"error": answer.text.removeprefix("error: ")}

    @property
    def _has_ended(self) -> bool:
        return self._last is not None and (self._last.failure is not None or self._last.record.outcome == "stopped")

    def add_calls(self, result: Result) -> Result:
        """Return the result of the code with its calls, and with the end of the episode if one of them ends it."""
        if self._has_ended and self._last.failure is not None:
            result = replace(failed_result("unavailable", str(self._last.failure)), failure=self._last.failure)
        elif self._has_ended:
            result = replace(result, content=(*result.content, *self._last.content), outcome="stopped")
        return replace(result, inner=tuple(self._calls))


class Shell(_InSandbox):
    """Shell in a sandbox: one tool, `shell`. It shares its folder with `python` and `files` in the same recipe.

    Args:
        persistence: Same as for `Python`; both must be equal.
        sandbox: Same as for `Python`, or a container per episode: `{container: podman, image: NAME}`.
        container: Same as for `Python`.
        limits: Same as for `Python`.
        preload: Same as for `Python`.
    """

    def __init__(
        self,
        *,
        persistence: Persistence = "persistent",
        sandbox: str | Mapping[str, Any] = "auto",
        container: Sequence[str] = (),
        limits: Limits | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(sandbox, container, preload, limits, persistence)
        self.declared = {"shell": persistence}

    def tools(self) -> list[Tool]:
        """Return the tool."""
        persistent = "Files and the current folder last" if self._persistence == "persistent" else "Nothing lasts"
        return [_add_note(self.shell, f"{persistent} from call to call.")]

    async def shell(self, command: str) -> Result:
        """Run a command with `sh`.

        Args:
            command: The command; it may have several lines.
        """
        return shown_outcome(await self._required_session.shell(command))


class Files(_InSandbox):
    """Tools to view and edit files in a sandbox: `view`, `create`, `str_replace`, `grep`.

    Args:
        sandbox: Same as for `Shell`; a container needs `python3`.
        container: Same as for `Python`.
        limits: Same as for `Python`.
        preload: Same as for `Python`.
        files: Contents by path, present at the start of each episode. A task can add files under `files` in its private
            data.
    """

    def __init__(
        self,
        *,
        sandbox: str | Mapping[str, Any] = "auto",
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
        return await self._done("view_path", path=path, first=first, last=last)

    async def create(self, path: str, text: str) -> str:
        """Write a file, in place of any that is there.

        Args:
            path: The file; folders on the way are made.
            text: All of what is in it.
        """
        return await self._done("create_file", path=path, text=text)

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
        outcome = await self._required_session.call_file_tool(function, **arguments)
        if outcome.ending is not Ending.OK or outcome.value is None:
            raise ToolError(outcome.error or "no answer")
        return outcome.value


def _add_note(method: Callable[..., Any], note: str) -> Tool:
    """Return a tool whose description ends with a note on persistence.

    The sandbox enforces its time limit.
    """
    tool = tool_from_function(method)
    return replace(tool, spec=replace(tool.spec, description=f"{tool.spec.description}\n{note}"), keeps_time=True)


def shown_outcome(outcome: Outcome) -> Result:
    """Return the outcome of a call as the model reads it: output, then value or error, then images."""
    pieces = [outcome.output.rstrip("\n")] if outcome.output else []
    if outcome.value is not None:
        pieces.append(outcome.value)
    if outcome.error:
        pieces.append(outcome.error if outcome.ending is Ending.ERROR else f"error: {outcome.error}")
    if outcome.exit_code:
        pieces.append(f"[exit code {outcome.exit_code}]")
    failed = outcome.ending is not Ending.OK or bool(outcome.exit_code)
    late = outcome.ending in (Ending.TIMEOUT, Ending.CPU)
    status: Status = "timeout" if late else "tool_error" if failed else "ok"
    images = tuple(Image(f"data:image/png;base64,{base64.b64encode(image).decode()}") for image in outcome.images)
    text = remove_host_paths("\n".join(pieces)) or ("" if images else "[nothing was printed]")
    return Result((*((Text(text),) if text else ()), *images), status)
