"""Outcomes of calls: from replies of the untrusted guest, and from the events that end a call without a reply."""

from __future__ import annotations

import base64
import contextlib
import signal
from typing import Any

import orjson

from whetstone.sandbox.limits import Limits
from whetstone.sandbox.protocol import Ending, Outcome


def parse_guest_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a reply of the untrusted guest; None for anything else."""
    with contextlib.suppress(ValueError):
        parsed = orjson.loads(data)
        return parsed if isinstance(parsed, dict) else None
    return None


def parse_outcome(reply: dict[str, Any]) -> Outcome | None:
    """Return the outcome of a call in a reply of the untrusted guest.

    The result is None for a malformed reply.

    JSON allows numbers of any length, and values of any type at any key, so every field is checked.
    """
    value, error, kind = reply.get("value", reply.get("data")), reply.get("error"), reply.get("kind", "error")
    images, exit_code = reply.get("images", []), reply.get("exit_code")
    if not (isinstance(value, str | None) and isinstance(error, str | None)):
        return None
    if exit_code is not None and type(exit_code) is not int:  # `True` is an int
        return None
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        return None
    try:
        pictures = tuple(base64.b64decode(image, validate=True) for image in images)
    except ValueError:
        return None
    cpu = reply.get("cpu")
    ending = Ending.OK if error is None else Ending.MEMORY if kind == "memory" else Ending.ERROR
    return Outcome(
        ending,
        value=value,
        error=error,
        images=pictures,
        exit_code=exit_code,
        cpu_seconds=_parse_seconds(cpu),
    )


def _parse_seconds(value: Any) -> float:
    """Return a number of seconds in a reply of the untrusted guest.

    The result is 0 for other types and implausible values.
    """
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def read_count(value: Any) -> int:
    """Return a count in a reply of the untrusted guest.

    The result is 0 for other types and negative numbers.
    """
    return value if isinstance(value, int) and value >= 0 else 0


def describe_end(event: str, detail: Any, limits: Limits) -> tuple[Ending, str]:
    """Return how a call without a reply ended, and the error text that the model reads.

    Args:
        event: Event that ended the call: `timeout`, `output`, `disk`, `nonsense` or `died`.
        detail: Time limit in seconds for `timeout`; exit code for `died`, negative for a signal.
        limits: Limits of the call.
    """
    if event == "timeout":
        return Ending.TIMEOUT, f"it ran longer than {detail:g} s and was ended"
    if event == "output":
        return Ending.OUTPUT, f"it printed more than {limits.output_bytes} bytes and was ended"
    if event == "disk":
        return Ending.DISK, f"its files were more than {limits.folder_mb} MiB or {limits.files} and it was ended"
    if event == "nonsense":
        return Ending.CRASHED, "the interpreter answered nonsense and was ended"
    if detail == -signal.SIGXCPU:
        return Ending.CPU, f"it computed longer than {limits.cpu_seconds:g} s and was ended"
    if isinstance(detail, int) and detail < 0:
        with contextlib.suppress(ValueError):
            return Ending.CRASHED, f"the interpreter was ended by {signal.Signals(-detail).name}"
    return Ending.CRASHED, f"the interpreter ended itself with exit code {detail}"
