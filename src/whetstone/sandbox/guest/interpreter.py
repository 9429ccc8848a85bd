"""Interpreter process of a session: runs Python cells and shell commands, and reads and writes files.

The process is untrusted, since the code it runs can change it. It can send anything to the host, which treats it as
text. Its privileges are fixed before it starts.

Note:
    `numpy` keeps its random state over a fork, so that without seeding every session would sample the same numbers.
    `random` does not keep it, so that without seeding no session could be repeated.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import io
import linecache
import os
import random
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any

from whetstone.sandbox.guest import files, folder_archives, wire

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MAX_FRAMES, _MAX_LINKS = 8, 50
_MAX_IMAGES, _IMAGE_BYTES = 4, 2 << 20
_MAX_VALUE_CHARACTERS = 100_000
_PIECE_BYTES = 4 << 20


def run_interpreter(host: socket.socket, output: int, home: str, options: Mapping[str, Any]) -> None:
    """Answer requests of the host until it closes the connection.

    The supervisor calls this function in a forked child.

    Args:
        host: Socket to the host.
        output: File descriptor that replaces standard output and standard error.
        home: Folder of the session, the working directory.
        options: Options of the session: `seed`.
    """
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(null, null + 1)
    os.close(output)
    sys.stdin = io.TextIOWrapper(io.FileIO(0), encoding="utf-8", errors="replace")
    sys.stdout, sys.stderr = _open_stream(1), _open_stream(2)
    os.chdir(home)
    os.environ.update(HOME=home, PWD=home)
    _seed(options["seed"])
    channel = _ToolChannel(host)
    requests: dict[str, Callable[..., dict[str, Any]]] = {
        "python": _Python(home, channel).run,
        "shell": _Shell(home).run,
        "read": _read,
        "write": _write,
        "folder": _call_file_tool,
        "pack": functools.partial(_pack_folder, channel),
        "unpack": functools.partial(_unpack_folder, channel),
    }
    while (request := wire.receive_frame(host)) is not None:
        number, action = request.pop("number"), request.pop("do")
        channel.number = number
        _reap_children()
        used = _cpu_seconds()
        _limit_cpu(used, request.pop("cpu_seconds"))
        started = time.perf_counter()
        try:
            for path, data in request.pop("files", {}).items():
                _write(path, data)
            answer = requests[action](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "kind": _kind(error)}
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        answer |= {"number": number, "seconds": time.perf_counter() - started, "cpu": _cpu_seconds() - used}
        host.sendall(wire.frame_message(answer))


class ToolCallError(RuntimeError):
    """Error of a tool that code called, with the text for a model."""

    __module__ = "builtins"  # so that a traceback shows the plain name


class _ToolChannel:
    """Connection to tools of the host: a call sends its arguments and waits for the reply."""

    def __init__(self, host: socket.socket) -> None:
        self.host, self.number, self.process, self.lock = host, 0, os.getpid(), threading.Lock()

    def offer_tools(self, parameters: Mapping[str, Sequence[str]]) -> types.SimpleNamespace:
        """Return an object with a function per tool."""
        return types.SimpleNamespace(
            **{name: functools.partial(self._call, name, names) for name, names in parameters.items()}
        )

    def _call(self, name: str, parameters: Sequence[str], *values: Any, **arguments: Any) -> str:
        by_name = dict(zip(parameters, values, strict=False))
        if len(values) > len(parameters):
            raise TypeError(f"{name}() takes {len(parameters)} arguments, got {len(values)}")
        if twice := by_name.keys() & arguments.keys():
            raise TypeError(f"{name}() got two values for {', '.join(sorted(twice))}")
        if os.getpid() != self.process:
            raise RuntimeError("tools can be called only by the process of the code")
        request = wire.frame_message({"number": self.number, "tool": name, "arguments": by_name | arguments})
        with self.lock:
            self.host.sendall(request)
            reply = wire.receive_frame(self.host)
        if reply is None or reply.get("ended"):
            raise SystemExit
        if "error" in reply:
            raise ToolCallError(reply["error"])
        return str(reply["text"])


class _Python:
    """Python notebook: names are kept between calls, and the value of the last expression is returned."""

    def __init__(self, home: str, channel: _ToolChannel) -> None:
        self.home, self.channel = home, channel
        sys.modules["__main__"] = main = types.ModuleType("__main__")  # classes of the cells are looked up here
        self.names: dict[str, Any] = main.__dict__
        self.calls = 0

    def run(self, code: str, tools: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
        self.calls += 1
        if tools is not None:
            self.names["tools"] = self.channel.offer_tools(tools)
        name = f"<call {self.calls}>"
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
        try:
            value = self._execute(code, name)
            text = None if value is None else self._represent(value)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                return {"error": f"SystemExit: {stop.code}", "kind": "error"}
            return {"images": _take_plots()}
        except BaseException as error:
            return {"error": _format_error(error, self.home), "kind": _kind(error), "images": _take_plots()}
        images = _take_plots()
        if value is not None and (picture := _as_image(value)) is not None:
            images, text = [*images, picture][:_MAX_IMAGES], None
        return {"value": text, "images": images}

    def _execute(self, code: str, name: str) -> Any:
        # not `ast.parse`, whose own line a traceback of a SyntaxError would show
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last: CodeType | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            value = tree.body.pop().value  # type: ignore[attr-defined]
            last = compile(ast.Expression(value), name, "eval", dont_inherit=True)
        exec(compile(tree, name, "exec", dont_inherit=True), self.names)  # without this file's `__future__` imports
        return eval(last, self.names) if last is not None else None

    def _represent(self, value: Any) -> str:
        self.names["_"] = value
        return str(repr(value))[:_MAX_VALUE_CHARACTERS]


class _Shell:
    """Shell: files and the current folder are kept between calls, variables are not."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def run(self, command: str) -> dict[str, Any]:
        at, end = os.pipe()
        os.set_inheritable(end, True)
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", f'trap "pwd >&{end}" EXIT\n{command}'],
                cwd=self.folder if os.path.isdir(self.folder) else None,
                close_fds=True,
                pass_fds=(end,),
                check=False,
            )
            os.close(end)
            end = -1
            os.set_blocking(at, False)
            with contextlib.suppress(BlockingIOError):
                self.folder = os.read(at, 4096).decode(errors="replace").strip() or self.folder
        finally:
            os.close(at)
            if end >= 0:
                os.close(end)
        return {"exit_code": done.returncode}


def _read(path: str, most: int) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return {"data": base64.b64encode(data).decode()}


def _write(path: str, data: str) -> dict[str, Any]:
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(data))
    return {}


def _call_file_tool(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of `files.py` by name; inside the sandbox a wrong path can do no harm."""
    try:
        return {"value": getattr(files, function)(**arguments)}
    except files.FolderError as error:
        return {"error": str(error), "kind": "error"}


class _ArchiveStream(io.RawIOBase):
    """Stream of bytes to or from the host, in pieces that are arguments and results of tools."""

    def __init__(self, tools: types.SimpleNamespace) -> None:
        self._tools, self._rest = tools, b""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._tools.send(base64.b64encode(data).decode())
        return len(data)

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or base64.b64decode(self._tools.receive())
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _pack_folder(channel: _ToolChannel, folder: str, tools: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    with io.BufferedWriter(_ArchiveStream(channel.offer_tools(tools)), _PIECE_BYTES) as target:
        folder_archives.pack_folder(folder, target)
    return {}


def _unpack_folder(channel: _ToolChannel, folder: str, tools: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    with io.BufferedReader(_ArchiveStream(channel.offer_tools(tools)), _PIECE_BYTES) as source:
        folder_archives.unpack_folder(source, folder)
    return {}


def _open_stream(file: int) -> io.TextIOWrapper:
    """Return a line-buffered text stream for a file descriptor, so that output before a timeout is not lost."""
    raw = io.BufferedWriter(io.FileIO(file, "w", closefd=False), 1 << 16)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _reap_children() -> None:
    """Wait for ended child processes of earlier calls, which count toward the process limit until then."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _cpu_seconds() -> float:
    used = time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used + children.ru_utime + children.ru_stime


def _limit_cpu(used: float, limit: float) -> None:
    """Set the processor time limit of the next call; the kernel counts whole seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _kind(error: BaseException) -> str:
    return "memory" if isinstance(error, MemoryError) else "error"


def _format_error(error: BaseException, home: str) -> str:
    """Return a traceback with the lines of these calls and of the session's files, and the last line of a library.

    Of a library's line, neither the folder nor the number is shown, and paths of the session's folder are relative:
    they differ between machines, and a model that reads them would sample different tokens from the same seed.
    """
    explained = traceback.TracebackException(type(error), error, _skip_own_frames(error.__traceback__), compact=True)
    for link in _list_links(explained):
        frames = [f for f in link.stack if f.filename.startswith(("<call ", f"{home}/"))]
        if link.stack and link.stack[-1] not in frames and link.stack[-1].filename != __file__:
            frames.append(link.stack[-1])
        if len(frames) > _MAX_FRAMES:
            frames = frames[:2] + frames[-(_MAX_FRAMES - 2) :]
        link.stack = _Stack(frames)
    return "".join(explained.format()).replace(f"{home}/", "").rstrip()


class _Stack(traceback.StackSummary):
    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: bool) -> str:
        """Format a library's frame by the path of its module and its text.

        Python 3.13 passes `colorize`.
        """
        path = frame_summary.filename
        libraries = [f"{folder}/" for folder in sys.path if folder and path.startswith(f"{folder}/")]
        if not libraries:
            return super().format_frame_summary(frame_summary, **options)
        line = f"    {frame_summary.line.strip()}\n" if frame_summary.line else ""
        return f'  File "{path.removeprefix(max(libraries, key=len))}", in {frame_summary.name}\n{line}'


def _list_links(explained: traceback.TracebackException) -> list[traceback.TracebackException]:
    """Return an exception with its causes, contexts and group members, at most 50."""
    links: list[traceback.TracebackException] = []
    left = [explained]
    while left and len(links) < _MAX_LINKS:
        current = left.pop(0)
        links.append(current)
        left += [other for other in (current.__cause__, current.__context__) if other is not None]
        left += current.exceptions or ()
    return links


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _take_plots() -> list[str]:
    """Return open matplotlib figures as base64 PNG images, and close them."""
    plotting = sys.modules.get("matplotlib.pyplot")
    if plotting is None:
        return []
    images = []
    try:
        for number in plotting.get_fignums()[:_MAX_IMAGES]:
            file = io.BytesIO()
            plotting.figure(number).savefig(file, format="png", bbox_inches="tight")
            images.append(file.getvalue())
        plotting.close("all")
    except Exception:
        return []
    return [base64.b64encode(image).decode() for image in images if len(image) <= _IMAGE_BYTES]


def _as_image(value: Any) -> str | None:
    """Return a Pillow image as a base64 PNG image; None for other values and for large images."""
    if "PIL.Image" not in sys.modules or not isinstance(value, sys.modules["PIL.Image"].Image):
        return None
    file = io.BytesIO()
    value.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode() if len(file.getvalue()) <= _IMAGE_BYTES else None
