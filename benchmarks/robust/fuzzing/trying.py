"""Process that tries inputs of one target and reports its findings on standard output.

Note:
    A killed process reports nothing, so each input is stored before it is tried.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from fuzzing.choices import Choices

PROGRESS, FOUND = "fuzz progress ", "fuzz found "
_MOST_BYTES = 4096
_INPUT_SECONDS = 10.0
_DEAD_SECONDS = 60.0
_SHRINK_SECONDS = 10.0
_MOST_MEMORY = 2 << 30
_SAY_SECONDS = 30.0


class TooLong(BaseException):
    """Timeout of an input; a BaseException, so that no `except Exception` catches it."""


class Trying:
    """Runner of the inputs of one target.

    Args:
        one: Function that runs one input.
        folder: Folder of the inputs with findings.
        seconds: Time limit.
    """

    def __init__(
        self, target: str, one: Callable[[Choices], None], folder: Path, *, seconds: float, engine: str
    ) -> None:
        self.target, self.one, self.engine = target, one, engine
        self.folder = folder / target
        self.folder.mkdir(parents=True, exist_ok=True)
        self.inputs, self.until = 0, time.monotonic() + seconds
        self._said, self._known = time.monotonic(), set[str]()
        self._now = _map_input_file(self.folder / "now")

    def input(self, data: bytes) -> None:
        """Try one input."""
        if self.inputs == 0:
            signal.signal(signal.SIGALRM, _too_long)  # replaces the handler of libFuzzer
        self.inputs += 1
        self._now[: 4 + len(data)] = len(data).to_bytes(4, "little") + data
        faulthandler.dump_traceback_later(_DEAD_SECONDS, exit=True)
        error = failure(self.one, data)
        faulthandler.cancel_dump_traceback_later()
        if error is not None:
            self.report_finding(data, error)
        now = time.monotonic()
        if now > self._said + _SAY_SECONDS or now > self.until:
            self.report_counts()
        if now > self.until:
            sys.stdout.flush()
            os._exit(0)

    def report_finding(self, data: bytes, error: BaseException) -> None:
        """Report a finding; the first of its kind is shrunk."""
        kind = kind_of(error)
        if kind not in self._known:
            self._known.add(kind)
            data = self.shrink_input(data, kind)
            self.report_counts()
        _report(FOUND, describe_finding(self.target, data, self.folder, failure(self.one, data) or error, self.one))

    def shrink_input(self, data: bytes, kind: str) -> bytes:
        """Return the input without the pieces that the finding does not need."""
        until, size = time.monotonic() + _SHRINK_SECONDS, len(data) // 2
        while size and time.monotonic() < until:
            at = 0
            while at < len(data) and time.monotonic() < until:
                shorter = data[:at] + data[at + size :]
                error = failure(self.one, shorter)
                if error is not None and kind_of(error) == kind:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data

    def report_counts(self) -> None:
        """Report the number of inputs so far and their cost."""
        self._said = time.monotonic()
        child_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() + child_usage.ru_utime + child_usage.ru_stime
        _report(PROGRESS, {"engine": self.engine, "inputs": self.inputs, "cpu_seconds": seconds})


def try_inputs(target: str, seconds: float, folder: Path, *, planted: bool) -> NoReturn:
    """Try inputs for `seconds` and exit."""
    module, fuzzer = load_target(target)
    if planted:
        module.plant()
    _bound_memory()
    trying = Trying(target, module.one, folder, seconds=seconds, engine="atheris" if fuzzer else "hypothesis")
    trying.report_counts()
    if fuzzer is None:
        print(
            "atheris is not installed; hypothesis generates the inputs without coverage",
            flush=True,
        )
        _run_hypothesis(trying)
    corpus = folder / target / "corpus"
    corpus.mkdir(exist_ok=True)
    if not any(corpus.iterdir()):
        for number in range(64):
            seed = hashlib.shake_128(f"{target} {number}".encode()).digest(2 ** (3 + number % 9))
            (corpus / f"begin-{number}").write_bytes(seed)
    options = [f"-max_len={_MOST_BYTES}", "-timeout=0", "-rss_limit_mb=0", "-malloc_limit_mb=0", "-len_control=20"]
    fuzzer.Setup([sys.argv[0], *options, "-reload=0", str(corpus)], trying.input)
    fuzzer.Fuzz()
    raise SystemExit(1)


def replay_input(target: str, data: bytes) -> int:
    """Run an input, print its finding, and return 1 if there is one, else 0."""
    module, _ = load_target(target, instrumented=False)
    signal.signal(signal.SIGALRM, _too_long)
    choices = Choices(data)
    try:
        module.one(choices)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for name, generated in choices.notes.items():
            print(f"{name}: {generated!r}")
    return 0


def load_target(target: str, *, instrumented: bool = True) -> tuple[ModuleType, Any]:
    """Return (target, fuzzer if it is installed)."""
    with contextlib.suppress(ImportError):
        if instrumented:
            import atheris  # type: ignore[import-untyped, unused-ignore]

            with atheris.instrument_imports(include=["whetstone"]):
                return importlib.import_module(f"fuzzing.{target}"), atheris
    return importlib.import_module(f"fuzzing.{target}"), None


def failure(one: Callable[[Choices], None], data: bytes) -> BaseException | None:
    """Return the exception that an input raises, or None."""
    signal.setitimer(signal.ITIMER_REAL, _INPUT_SECONDS)
    try:
        one(Choices(data))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def kind_of(error: BaseException) -> str:
    """Return the kind of a finding: the error with the innermost function of Whetstone, or the message of a check."""
    if type(error).__name__ == "Finding":
        return str(error).partition(":")[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/whetstone/" in f.filename]
    place = f" in {frames[-1].filename.rpartition('/whetstone/')[2]}:{frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"


def describe_finding(
    target: str, data: bytes, folder: Path, error: BaseException, one: Callable[[Choices], None]
) -> dict[str, Any]:
    """Store the input of a finding and return the finding as it is reported."""
    kind = kind_of(error)
    choices = Choices(data)
    with contextlib.suppress(BaseException):
        one(choices)
    return {
        "kind": kind,
        "message": f"{type(error).__name__}: {error}"[:400],
        "trace": [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}"
            for frame in traceback.extract_tb(error.__traceback__)[-8:]
        ],
        "made": {name: repr(generated)[:2000] for name, generated in choices.notes.items()},
        **_store_input(kind, data, folder),
    }


def finding_of_a_death(target: str, folder: Path, code: int, last: str) -> dict[str, Any]:
    """Return the finding of a process that died."""
    written = (folder / target / "now").read_bytes()
    data = written[4 : 4 + int.from_bytes(written[:4], "little")]
    kind = f"the process died with {code}"
    return {"kind": kind, "message": last[-2000:], "trace": [], "made": {}, **_store_input(kind, data, folder / target)}


def _store_input(kind: str, data: bytes, folder: Path) -> dict[str, Any]:
    name = hashlib.sha256(kind.encode()).hexdigest()[:12]
    for number in range(3):
        place = folder / f"{name}-{number}.bin"
        if not place.exists() or place.read_bytes() == data or len(place.read_bytes()) > len(data):
            break
    place.write_bytes(data)
    return {"file": str(place), "bytes": len(data)}


def _run_hypothesis(trying: Trying) -> NoReturn:
    import hypothesis
    from hypothesis import strategies as st

    inputs = st.binary(max_size=64) | st.binary(min_size=64, max_size=_MOST_BYTES // 4)
    number = int.from_bytes(os.urandom(4), "little")
    while True:
        number += 1
        test = hypothesis.given(inputs)(trying.input)
        settings = hypothesis.settings(
            max_examples=1000, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        hypothesis.seed(number)(settings(test))()


def _map_input_file(place: Path) -> mmap.mmap:
    with open(place, "wb+") as file:
        file.truncate(4 + 2 * _MOST_BYTES)
        return mmap.mmap(file.fileno(), 4 + 2 * _MOST_BYTES)


def _bound_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + _MOST_MEMORY, now + _MOST_MEMORY))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"more than {_INPUT_SECONDS:g} s")


def _report(what: str, content: dict[str, Any]) -> None:
    sys.stdout.write(what + json.dumps(content) + "\n")
    sys.stdout.flush()


def scratch(name: str) -> Path:
    """Return a scratch folder of a target; it is deleted with the process's temporary files."""
    return Path(tempfile.mkdtemp(prefix=f"whetstone-fuzz-{name}-"))
