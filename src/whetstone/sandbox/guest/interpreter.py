"""The process that runs foreign code: Python as in a notebook, shell commands, and reading and writing files.

It is not trusted, since what it runs can change it: it can say anything to the host, and the host believes only that
it was said. What it cannot do is decided before it starts.

Easy to get wrong: `numpy` keeps its random state over a fork, so without a seed of its own every session would draw
the same numbers; `random` does not, so without one no session could be repeated.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import linecache
import os
import random
import resource
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from types import CodeType, TracebackType
from typing import Any

from whetstone.sandbox.guest import folder, wire

_MOST_FRAMES, _MOST_LINKS = 8, 50
_MOST_IMAGES, _IMAGE_BYTES = 4, 2 << 20
_MOST_VALUE_CHARACTERS = 100_000


def serve(host: socket.socket, output: int, home: str, options: Mapping[str, Any]) -> None:
    """Answer requests until there are no more."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(nothing, nothing + 1)
    os.close(output)
    sys.stdin = io.TextIOWrapper(io.FileIO(0), encoding="utf-8", errors="replace")
    sys.stdout, sys.stderr = _printer(1), _printer(2)
    os.chdir(home)
    os.environ.update(HOME=home, PWD=home)
    _seed(options["seed"])
    requests: dict[str, Callable[..., dict[str, Any]]] = {
        "python": _Python(home).run,
        "shell": _Shell(home).run,
        "read": _read,
        "write": _write,
        "folder": _folder,
    }
    while (request := wire.receive_frame(host)) is not None:
        number, what = request.pop("number"), request.pop("do")
        _bury()
        used = _processor_seconds()
        _limit_processor(used, request.pop("cpu_seconds"))
        began = time.perf_counter()
        try:
            for path, data in request.pop("files", {}).items():
                _write(path, data)
            answer = requests[what](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "kind": _kind(error)}
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        answer |= {"number": number, "seconds": time.perf_counter() - began, "cpu": _processor_seconds() - used}
        host.sendall(wire.frame(answer))


class _Python:
    """A notebook: names live from call to call, the value of the last expression is shown."""

    def __init__(self, home: str) -> None:
        self.home = home
        sys.modules["__main__"] = main = types.ModuleType("__main__")  # where classes made here are looked for
        self.names: dict[str, Any] = main.__dict__
        self.calls = 0

    def run(self, code: str) -> dict[str, Any]:
        self.calls += 1
        name = f"<call {self.calls}>"
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
        try:
            value = self._executed(code, name)
            shown = None if value is None else self._shown(value)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                return {"error": f"SystemExit: {stop.code}", "kind": "error"}
            return {"images": _plots()}
        except BaseException as error:
            return {"error": _explained(error, self.home), "kind": _kind(error), "images": _plots()}
        images = _plots()
        if value is not None and (picture := _as_image(value)) is not None:
            images, shown = [*images, picture][:_MOST_IMAGES], None
        return {"value": shown, "images": images}

    def _executed(self, code: str, name: str) -> Any:
        # not `ast.parse`, whose own line a traceback of a SyntaxError would show
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last: CodeType | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            value = tree.body.pop().value  # type: ignore[attr-defined]
            last = compile(ast.Expression(value), name, "eval", dont_inherit=True)
        exec(compile(tree, name, "exec", dont_inherit=True), self.names)  # what this file is compiled with is its own
        return eval(last, self.names) if last is not None else None

    def _shown(self, value: Any) -> str:
        self.names["_"] = value
        return str(repr(value))[:_MOST_VALUE_CHARACTERS]


class _Shell:
    """Commands; files and the current folder last from one to the next, variables do not."""

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


def _folder(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Look at or change files on this side, where a wrong path can do no harm."""
    try:
        return {"value": getattr(folder, function)(**arguments)}
    except folder.FolderError as error:
        return {"error": str(error), "kind": "error"}


def _printer(file: int) -> io.TextIOWrapper:
    """A stream that lets go of each line, so that what was said before a call was cut off is not lost with it."""
    raw = io.BufferedWriter(io.FileIO(file, "w", closefd=False), 1 << 16)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _bury() -> None:
    """Strike off what earlier calls started and the supervisor ended; it counts as a process until then."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _processor_seconds() -> float:
    used = time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used + children.ru_utime + children.ru_stime


def _limit_processor(used: float, most: float) -> None:
    """The next call's share. The kernel counts whole seconds; the host's clock is the sharper one."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + most) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _kind(error: BaseException) -> str:
    return "memory" if isinstance(error, MemoryError) else "error"


def _explained(error: BaseException, home: str) -> str:
    """Format a traceback: the lines of these calls and of the session's files, the last line of a library, the error.

    Of a library's line, neither the folder nor the number is shown, and paths of the session's folder are relative:
    they differ between machines, and a model that reads them would sample different tokens from the same seed.
    """
    explained = traceback.TracebackException(type(error), error, _beyond_us(error.__traceback__), compact=True)
    for link in _linked(explained):
        frames = [f for f in link.stack if f.filename.startswith(("<call ", f"{home}/"))]
        if link.stack and link.stack[-1] not in frames:
            frames.append(link.stack[-1])
        if len(frames) > _MOST_FRAMES:
            frames = frames[:2] + frames[-(_MOST_FRAMES - 2) :]
        link.stack = _Stack(frames)
    return "".join(explained.format()).replace(f"{home}/", "").rstrip()


class _Stack(traceback.StackSummary):
    def format_frame_summary(self, frame_summary: traceback.FrameSummary) -> str:
        """Format a line of a library by the path of its module and its text."""
        path = frame_summary.filename
        libraries = [f"{folder}/" for folder in sys.path if folder and path.startswith(f"{folder}/")]
        if not libraries:
            return super().format_frame_summary(frame_summary)
        line = f"    {frame_summary.line.strip()}\n" if frame_summary.line else ""
        return f'  File "{path.removeprefix(max(libraries, key=len))}", in {frame_summary.name}\n{line}'


def _linked(explained: traceback.TracebackException) -> list[traceback.TracebackException]:
    """List an exception, its causes, and the members of groups."""
    links: list[traceback.TracebackException] = []
    left = [explained]
    while left and len(links) < _MOST_LINKS:
        current = left.pop(0)
        links.append(current)
        left += [other for other in (current.__cause__, current.__context__) if other is not None]
        left += current.exceptions or ()
    return links


def _beyond_us(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _plots() -> list[str]:
    """Open figures as PNG, which closes them."""
    plotting = sys.modules.get("matplotlib.pyplot")
    if plotting is None:
        return []
    images = []
    try:
        for number in plotting.get_fignums()[:_MOST_IMAGES]:
            file = io.BytesIO()
            plotting.figure(number).savefig(file, format="png", bbox_inches="tight")
            images.append(file.getvalue())
        plotting.close("all")
    except Exception:
        return []
    return [base64.b64encode(image).decode() for image in images if len(image) <= _IMAGE_BYTES]


def _as_image(value: Any) -> str | None:
    """A picture of Pillow as PNG."""
    if "PIL.Image" not in sys.modules or not isinstance(value, sys.modules["PIL.Image"].Image):
        return None
    file = io.BytesIO()
    value.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode() if len(file.getvalue()) <= _IMAGE_BYTES else None
