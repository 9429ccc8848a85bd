"""How is a field of a request read? The same checks for every dialect, each refusal a line with the field's name."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.asked import RefusedError

_MOST_ANSWERS = 128
_MOST_STOPS = 16
_LONGEST_STOP = 1000
"""Characters; every beginning of a stop is compared with the end of an answer."""
_DEEPEST = 64
"""Objects and lists within one another; what reads, writes or checks them goes down as far as they go."""
_DIGITS = re.compile("[0-9]{1,19}")
_DISCARDED_BYTES = 64 << 20
_LONG = 1 << 13
"""Characters; measured, 8,000 take up to 25 ms to read and tokenize."""
_T = TypeVar("_T")


def whole_number(value: Any, where: str, *, most: int = 2**63 - 1) -> int:
    """Return a whole number, given as a number of JSON or as ASCII digits.

    Args:
        value: Without a sign, a space, an underscore or digits of another script.
        where: Name of the field, for the message.
        most: Largest number that is allowed.

    Raises:
        RefusedError: It is not a whole number from 0 to `most`.
    """
    if isinstance(value, str):
        number = int(value) if _DIGITS.fullmatch(value) else -1
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if not 0 <= number <= most:
        allowed = f"a whole number from 0 to {most} in ASCII digits"
        raise RefusedError(f"{where}: {allowed}, got {shortened(value)}", param=where)
    return number


def seconds_of(value: str, where: str) -> float:
    """Return a number of seconds, given as ASCII digits with an optional decimal point.

    Raises:
        RefusedError: It is not one.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise RefusedError(f"{where}: a number of seconds, got {shortened(value)}", param=where)
    return float(value)


async def receive_body(pieces: AsyncIterable[bytes], *, length: str, max_bytes: int, seconds: float) -> bytes:
    """Read the body of a request within limits.

    A body that is too large is read to its end, and discarded, if it has at most 64 MiB: a client that is still sending
    reads no response.

    Args:
        pieces: The body.
        length: Header `Content-Length`; empty if there is none.
        max_bytes: Maximum size.
        seconds: Maximum time until the body is complete.

    Raises:
        RefusedError: It is too large (413), or not complete in time (408).
    """
    refused = RefusedError(f"a request may have {max_bytes} bytes", status=413, code="request_too_large")
    limit = max(max_bytes, _DISCARDED_BYTES)
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise refused
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in pieces:
                size += len(piece)
                if size > limit:
                    break
                if size <= max_bytes:
                    parts.append(piece)
                else:
                    parts.clear()
    except TimeoutError:
        raise RefusedError(f"not all of it was there after {seconds:g} s", status=408) from None
    if size > max_bytes:
        raise refused
    return b"".join(parts)


async def run_by_size(size: int, work: Callable[[], _T]) -> _T:
    """Call `work` in a thread if its input is long, so that other requests are answered meanwhile.

    Args:
        size: Characters or bytes that are read.
        work: Takes up to 3 µs for a character.
    """
    return await asyncio.to_thread(work) if size > _LONG else work()


def read_body(written: bytes) -> Mapping[str, Any]:
    """The object a request holds.

    Raises:
        RefusedError: It is none; or it holds a number that is none, or half a letter, which nothing can write again.
    """

    try:
        body = strict_json(written)
        _refuse_depth(body)
        if b"\\u" in written:
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RefusedError("We could not parse the JSON body of your request.") from None
    return mapped(body, "the body of a request")


def _refuse_depth(body: Any) -> None:
    level = [body]
    for _ in range(_DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inner:
            return
        level = [value for values in inner for value in values]
    raise RefusedError(f"the body of a request: more than {_DEEPEST} objects and lists within one another")


def strict_json(written: str | bytes) -> Any:
    """What JSON says, all its numbers finite.

    Raises:
        ValueError: It is none.
        RecursionError: It is nested too deeply.
    """

    def read(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number} is no number of JSON")
        return value

    return json.loads(written, parse_constant=read, parse_float=read)


def refuse_unknown(body: Mapping[str, Any], known: Collection[str], why: Mapping[str, str]) -> None:
    """See that every field is one somebody acts on; null is as if it were not there.

    Args:
        why: What is said of some that are refused; of any other, that it is not known.

    Raises:
        RefusedError: One is not.
    """
    for name in sorted(set(body) - set(known)):
        if body[name] is not None:
            raise RefusedError(f"{name}: {why.get(name, 'not known here')}", param=name, code="unsupported_parameter")


def listed(given: Any, name: str) -> list[Any]:
    """A list; none where nothing is given."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise RefusedError(f"{name}: a list, got {shortened(given)}", param=name)
    return given


def mapped(given: Any, where: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(given, Mapping):
        raise RefusedError(f"{where}: an object, got {shortened(given)}", param=where)
    return given


def text_of(given: Any, where: str) -> str:
    """A text."""
    if not isinstance(given, str):
        raise RefusedError(f"{where}: a text, got {shortened(given)}", param=where)
    return given


def flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RefusedError(f"{name}: true or false, got {shortened(value)}", param=name)
    return default if value is None else value


def tools_of(found: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Tools, no two of the same name."""
    names: set[str] = set()
    for number, spec in enumerate(found):
        if spec.name in names:
            raise RefusedError(f'tools[{number}]: there is a tool "{spec.name}" already', param=f"tools[{number}]")
        names.add(spec.name)
    return tuple(found)


def tool_of(where: str, name: Any, description: Any, parameters: Any) -> ToolSpec:
    """A tool by its parts; without a schema it takes nothing."""
    if parameters is not None:
        mapped(parameters, f"{where}: its schema")
    told = "" if description is None else text_of(description, f"{where}.description")
    if name == "":
        raise RefusedError(f"{where}.name: empty; a tool has a name", param=f"{where}.name")
    return ToolSpec(text_of(name, f"{where}.name"), told, parameters or {"type": "object", "properties": {}})


def in_order(messages: Sequence[Message], places: Sequence[str]) -> tuple[Message, ...]:
    """Messages a model can be asked with.

    Args:
        places: Where each stands in the request.

    Raises:
        RefusedError: There are none, the last is the model's own, a result has no call before it, or a call no result.
    """
    if not messages:
        raise RefusedError("messages: there is nothing to answer", param="messages")
    if messages[-1].role == "assistant" and not messages[-1].tool_calls:
        raise RefusedError(
            "messages: the last one is the assistant's; what it begins with is not drawn", param=places[-1]
        )
    called: set[str | None] = set()
    waiting: dict[str, str] = {}
    for message, place in zip(messages, places, strict=True):
        if message.role == "tool":
            if message.tool_call_id not in called:
                raise RefusedError(
                    f"{place}: a result of a call that does not stand before it ({shortened(message.tool_call_id)})",
                    param=place,
                )
            waiting.pop(str(message.tool_call_id), None)
            continue
        _refuse_waiting(waiting)
        waiting = {call.id: place for call in message.tool_calls}
        called |= set(waiting)
    _refuse_waiting(waiting)
    return tuple(messages)


def _refuse_waiting(waiting: Mapping[str, str]) -> None:
    for id, place in waiting.items():
        raise RefusedError(f"{place}: the call {shortened(id)} has no result behind it", param=place)


def stops_of(given: Any, name: str = "stop") -> tuple[str, ...]:
    """Texts at which an answer ends."""
    stops = [given] if isinstance(given, str) else listed(given, name)
    if len(stops) > _MOST_STOPS or not all(isinstance(stop, str) and 0 < len(stop) <= _LONGEST_STOP for stop in stops):
        allowed = f"a text of 1 to {_LONGEST_STOP} characters, or up to {_MOST_STOPS} of them"
        raise RefusedError(f"{name}: {allowed}", param=name)
    return tuple(stops)


def whole(body: Mapping[str, Any], *names: str, least: int = 1, most: int | None = None) -> int | None:
    """The first of these fields that is there, a whole number."""
    for name in names:
        value = body.get(name)
        if value is not None:
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if not fits or (most is not None and value > most):
                range = f"{least} or more" if most is None else f"from {least} to {most}"
                raise RefusedError(f"{name}: {range}, got {shortened(value)}", param=name)
            return int(value)
    return None


def real(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number of a range."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RefusedError(f"{name}: from {low:g} to {high:g}, got {shortened(value)}", param=name)
    return float(value)


def finite(value: Any, where: str) -> float:
    """A number that can be computed with.

    Raises:
        RefusedError: It is none, or a whole one that is too large for that.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    raise RefusedError(f"{where}: a number is asked for, got {shortened(value)}", param=where)


def temperature(body: Mapping[str, Any], high: float = 2) -> float:
    """What logits are divided by; what is too small to divide by takes the likeliest token, as 0 does."""
    given = real(body, "temperature", 1.0, 0, high)
    return given if given >= 1e-4 else 0.0


def top_p(body: Mapping[str, Any]) -> float:
    """The share of probability that is drawn from; 0 takes the likeliest token, as the least share does."""
    return max(real(body, "top_p", 1.0, 0, 1), 1e-9)


def seed(value: Any) -> int | None:
    """A seed, of any sign."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise RefusedError("seed: a whole number of 64 bits", param="seed")
    return value % 2**63


def count(body: Mapping[str, Any]) -> int:
    """How many answers are asked for."""
    return whole(body, "n", most=_MOST_ANSWERS) or 1


def bias(given: Any) -> dict[int, float]:
    """Token id → what is added to its logit; -100 forbids it."""
    if not given:
        return {}
    try:
        found = {whole_number(token, "logit_bias"): finite(value, "logit_bias") for token, value in given.items()}
    except AttributeError:
        raise RefusedError("logit_bias: an object of token ids and numbers", param="logit_bias") from None
    if not all(abs(value) <= 100 for value in found.values()):
        raise RefusedError("logit_bias: from -100 to 100", param="logit_bias")
    return {token: -math.inf if value <= -100 else value for token, value in found.items()}


def refuse_penalties(body: Mapping[str, Any]) -> None:
    """See that nothing changes with what was drawn before."""
    for name in ("frequency_penalty", "presence_penalty"):
        if real(body, name, 0.0, -2, 2):
            raise RefusedError(f"{name}: drawn tokens would have no log-probs to train on", param=name)


def shortened(value: Any) -> str:
    """A value for a line of text."""
    try:
        return str(value)[:40]
    except ValueError:  # a number of thousands of digits
        return "a number too long to write"
