"""What does the other side say, where nothing of it may be believed? At most that a call ended in some way, with words.

Easy to get wrong: JSON has numbers without end, and values of any kind in any place; foreign code can send all of it.
"""

from __future__ import annotations

import base64
import contextlib
import signal
from typing import Any

import orjson

from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome


def object_of(data: bytes) -> dict[str, Any] | None:
    """The JSON object that was sent; None for anything else."""
    with contextlib.suppress(ValueError):
        said = orjson.loads(data)
        return said if isinstance(said, dict) else None
    return None


def outcome_of(answer: dict[str, Any]) -> Outcome | None:
    """An answer that is one; None for anything else."""
    value, error, kind = answer.get("value", answer.get("data")), answer.get("error"), answer.get("kind", "error")
    images, exit_code = answer.get("images", []), answer.get("exit_code")
    if not (isinstance(value, str | None) and isinstance(error, str | None)):
        return None
    if exit_code is not None and type(exit_code) is not int:  # true is an int, too
        return None
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        return None
    try:
        pictures = tuple(base64.b64decode(image, validate=True) for image in images)
    except ValueError:
        return None
    cpu = answer.get("cpu")
    ending = Ending.OK if error is None else Ending.MEMORY if kind == "memory" else Ending.ERROR
    return Outcome(
        ending,
        value=value,
        error=error,
        images=pictures,
        exit_code=exit_code,
        cpu_seconds=_seconds(cpu),
    )


def _seconds(said: Any) -> float:
    """A number of seconds that foreign code has said; 0 for anything else, and for more than anybody has computed."""
    return float(said) if isinstance(said, int | float) and 0 <= said < 1e9 else 0.0


def count_of(said: Any) -> int:
    """A number of things; 0 for anything else."""
    return said if isinstance(said, int) and said >= 0 else 0


def why_it_ended(happened: str, what: Any, limits: Limits) -> tuple[Ending, str]:
    """What an end that is no answer is called, and what a model is told of it."""
    if happened == "timeout":
        return Ending.TIMEOUT, f"it ran longer than {what:g} s and was ended"
    if happened == "output":
        return Ending.OUTPUT, f"it printed more than {limits.output_bytes} bytes and was ended"
    if happened == "disk":
        return Ending.DISK, f"its files were more than {limits.folder_mb} MiB or {limits.files} and it was ended"
    if happened == "nonsense":
        return Ending.CRASHED, "the interpreter answered nonsense and was ended"
    if what == -signal.SIGXCPU:
        return Ending.CPU, f"it computed longer than {limits.cpu_seconds:g} s and was ended"
    if isinstance(what, int) and what < 0:
        with contextlib.suppress(ValueError):
            return Ending.CRASHED, f"the interpreter was ended by {signal.Signals(-what).name}"
    return Ending.CRASHED, f"the interpreter ended itself with exit code {what}"
