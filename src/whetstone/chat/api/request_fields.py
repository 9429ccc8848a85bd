"""Parsing and validation of request fields, common to all API formats.

Every error is a `RefusedError` in one line that starts with the field's name.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.requests import RefusedError

_MOST_ANSWERS = 128
_MOST_STOPS = 16
_LONGEST_STOP = 1000
"""Maximum length of a stop text in characters; every prefix of it is compared with the end of an answer."""
_DEEPEST = 64
"""Maximum nesting of objects and lists in a body, because they are processed recursively."""
_DIGITS = re.compile("[0-9]{1,19}")
_DISCARDED_BYTES = 64 << 20
_LONG = 1 << 13
"""Number of characters above which work runs in a thread; parsing and tokenizing them takes 25 ms (measured)."""
_T = TypeVar("_T")


def whole_number(value: Any, where: str, *, most: int = 2**63 - 1) -> int:
    """Parse a whole number from a JSON number or from ASCII digits.

    Signs, spaces, underscores and digits of other scripts are rejected.

    Args:
        value: Value to parse.
        where: Name of the field, for the error.
        most: Largest number that is allowed.

    Raises:
        RefusedError: If the value is not a whole number from 0 to `most`.
    """
    if isinstance(value, str):
        number = int(value) if _DIGITS.fullmatch(value) else -1
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if not 0 <= number <= most:
        allowed = f"a whole number from 0 to {most} in ASCII digits"
        raise RefusedError(f"{where}: {allowed}, got {truncate_value(value)}", param=where)
    return number


def parse_seconds(value: str, where: str) -> float:
    """Parse a number of seconds from ASCII digits with an optional decimal point.

    Args:
        value: Text to parse.
        where: Name of the field, for the error.

    Raises:
        RefusedError: If the text is not such a number.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise RefusedError(f"{where}: expected a number of seconds, got {truncate_value(value)}", param=where)
    return float(value)


async def receive_body(pieces: AsyncIterable[bytes], *, length: str, max_bytes: int, seconds: float) -> bytes:
    """Read the body of a request within limits of size and time.

    A body that is too large is read to its end and discarded if it has at most 64 MiB, because a client that is still
    sending reads no response.

    Args:
        pieces: Chunks of the body.
        length: Value of the header `Content-Length`; empty if there is none.
        max_bytes: Maximum size in bytes.
        seconds: Maximum time until the body is complete.

    Raises:
        RefusedError: If the body is too large (413), or not complete in time (408).
    """
    refused = RefusedError(f"a request may have at most {max_bytes} bytes", status=413, code="request_too_large")
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
        raise RefusedError(f"the request body was not complete after {seconds:g} s", status=408) from None
    if size > max_bytes:
        raise refused
    return b"".join(parts)


async def run_by_size(size: int, work: Callable[[], _T]) -> _T:
    """Call `work` in a thread if its input is long, so that the event loop can serve other requests meanwhile.

    Args:
        size: Number of characters or bytes of the input.
        work: Function that takes up to 3 µs per character.
    """
    return await asyncio.to_thread(work) if size > _LONG else work()


def read_body(written: bytes) -> Mapping[str, Any]:
    """Parse the body of a request as a JSON object.

    Raises:
        RefusedError: If the body is not a JSON object, is nested too deeply, or contains a non-finite number or an
            unpaired surrogate, which cannot be encoded.
    """

    try:
        body = strict_json(written)
        _refuse_depth(body)
        if b"\\u" in written:
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RefusedError("We could not parse the JSON body of your request.") from None
    return require_object(body, "the body of a request")


def _refuse_depth(body: Any) -> None:
    level = [body]
    for _ in range(_DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inner:
            return
        level = [value for values in inner for value in values]
    raise RefusedError(f"the body of a request: nested more than {_DEEPEST} levels deep")


def strict_json(written: str | bytes) -> Any:
    """Parse JSON, and reject NaN and infinite numbers.

    Raises:
        ValueError: If the JSON is invalid, or a number is not finite.
        RecursionError: If it is nested too deeply.
    """

    def read(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number} is not a JSON number")
        return value

    return json.loads(written, parse_constant=read, parse_float=read)


def refuse_unknown(body: Mapping[str, Any], known: Collection[str], why: Mapping[str, str]) -> None:
    """Check that a request has only supported fields.

    A field with the value null counts as absent.

    Args:
        body: Request body.
        known: Names of supported fields.
        why: Reason of the rejection by field name; a field without a reason is reported as unknown.

    Raises:
        RefusedError: If a field is not supported.
    """
    for name in sorted(set(body) - set(known)):
        if body[name] is not None:
            raise RefusedError(
                f"{name}: {why.get(name, 'unknown field; GET /openapi.json lists the supported ones')}",
                param=name,
                code="unsupported_parameter",
            )


def parse_list(value: Any, name: str) -> list[Any]:
    """Return a value that must be a list; null gives an empty list.

    Raises:
        RefusedError: If the value is neither a list nor null.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise RefusedError(f"{name}: expected a list, got {truncate_value(value)}", param=name)
    return value


def require_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value that must be a JSON object.

    Raises:
        RefusedError: If the value is not an object.
    """
    if not isinstance(value, Mapping):
        raise RefusedError(f"{where}: expected an object, got {truncate_value(value)}", param=where)
    return value


def parse_text(value: Any, where: str) -> str:
    """Return a value that must be a string.

    Raises:
        RefusedError: If the value is not a string.
    """
    if not isinstance(value, str):
        raise RefusedError(f"{where}: expected a string, got {truncate_value(value)}", param=where)
    return value


def parse_bool(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a boolean field of a request; `default` if it is absent or null.

    Raises:
        RefusedError: If the value is not a boolean.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RefusedError(f"{name}: expected true or false, got {truncate_value(value)}", param=name)
    return default if value is None else value


def check_unique_tools(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools of a request as a tuple, after a check that their names are unique.

    Raises:
        RefusedError: If two tools have the same name.
    """
    names: set[str] = set()
    for number, spec in enumerate(tools):
        if spec.name in names:
            raise RefusedError(f'tools[{number}]: duplicate tool "{spec.name}"', param=f"tools[{number}]")
        names.add(spec.name)
    return tuple(tools)


def build_tool(where: str, name: Any, description: Any, parameters: Any) -> ToolSpec:
    """Create a tool declaration from the fields of a request.

    A missing schema gives a tool without parameters.

    Args:
        where: Field of the tool, such as `tools[0]`, for errors.
        name: Name of the tool.
        description: Description; None: empty.
        parameters: JSON Schema of the arguments; None: no parameters.

    Raises:
        RefusedError: If a field has the wrong type, or the name is empty.
    """
    if parameters is not None:
        require_object(parameters, f"{where}: its schema")
    text = "" if description is None else parse_text(description, f"{where}.description")
    if name == "":
        raise RefusedError(f"{where}.name: is empty; give the tool a name", param=f"{where}.name")
    return ToolSpec(parse_text(name, f"{where}.name"), text, parameters or {"type": "object", "properties": {}})


def check_message_order(messages: Sequence[Message], places: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages, after a check that they are in an order to which a model can respond.

    Args:
        messages: Messages of a request.
        places: Field of each message in the request, for errors.

    Raises:
        RefusedError: If there is no message, the last one is an assistant message without calls, a result has no call
            before it, or a call has no result.
    """
    if not messages:
        raise RefusedError("messages: at least one message is required", param="messages")
    if messages[-1].role == "assistant" and not messages[-1].tool_calls:
        raise RefusedError(
            "messages: the last message is from the assistant, and prefilled answers are not supported; end with a "
            "user message or a tool result",
            param=places[-1],
        )
    called: set[str | None] = set()
    waiting: dict[str, str] = {}
    for message, place in zip(messages, places, strict=True):
        if message.role == "tool":
            if message.tool_call_id not in called:
                raise RefusedError(
                    f"{place}: no earlier message has the call {truncate_value(message.tool_call_id)} of this result",
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
        raise RefusedError(
            f"{place}: the call {truncate_value(id)} has no result; add its result after this message", param=place
        )


def parse_stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    """Parse stop texts: one string, or a list of at most 16.

    Raises:
        RefusedError: If there are too many, or one is not a string of 1 to 1000 characters.
    """
    stops = [value] if isinstance(value, str) else parse_list(value, name)
    if len(stops) > _MOST_STOPS or not all(isinstance(stop, str) and 0 < len(stop) <= _LONGEST_STOP for stop in stops):
        allowed = f"a text of 1 to {_LONGEST_STOP} characters, or up to {_MOST_STOPS} of them"
        raise RefusedError(f"{name}: expected {allowed}, got {truncate_value(value)}", param=name)
    return tuple(stops)


def parse_int(body: Mapping[str, Any], *names: str, least: int = 1, most: int | None = None) -> int | None:
    """Return an integer field of a request; None if it is absent.

    Args:
        body: Request body.
        names: Alternative names of the field; the first one that is present counts.
        least: Smallest allowed value.
        most: Largest allowed value; None: unbounded.

    Raises:
        RefusedError: If the value is not an integer in this range.
    """
    for name in names:
        value = body.get(name)
        if value is not None:
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if not fits or (most is not None and value > most):
                range = f"{least} or more" if most is None else f"from {least} to {most}"
                raise RefusedError(f"{name}: must be {range}, got {truncate_value(value)}", param=name)
            return int(value)
    return None


def parse_float(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """Return a number field of a request; `default` if it is absent.

    Raises:
        RefusedError: If the value is not a number from `low` to `high`.
    """
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RefusedError(f"{name}: must be from {low:g} to {high:g}, got {truncate_value(value)}", param=name)
    return float(value)


def parse_finite(value: Any, where: str) -> float:
    """Return a value that must be a finite number.

    Args:
        value: Value to check.
        where: Name of the field, for the error.

    Raises:
        RefusedError: If the value is not a number, or not below 1e300 in magnitude.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    raise RefusedError(f"{where}: expected a number, got {truncate_value(value)}", param=where)


def parse_temperature(body: Mapping[str, Any], high: float = 2) -> float:
    """Return the temperature of a request; 1 if it is absent.

    Values below 1e-4 become 0, which takes the most likely token.

    Args:
        body: Request body.
        high: Largest allowed value.
    """
    value = parse_float(body, "temperature", 1.0, 0, high)
    return value if value >= 1e-4 else 0.0


def parse_top_p(body: Mapping[str, Any]) -> float:
    """Return `top_p` of a request.

    An absent field gives 1, and 0 becomes 1e-9, which takes the most likely token.
    """
    return max(parse_float(body, "top_p", 1.0, 0, 1), 1e-9)


def parse_sampling_seed(value: Any) -> int | None:
    """Return the seed of a request as a nonnegative number; None if it is absent.

    Raises:
        RefusedError: If the seed is not an integer of 64 bits.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise RefusedError(f"seed: must be an integer of at most 64 bits, got {truncate_value(value)}", param="seed")
    return value % 2**63


def parse_answer_count(body: Mapping[str, Any]) -> int:
    """Return the number of answers that a request asks for (`n`), from 1 to 128."""
    return parse_int(body, "n", most=_MOST_ANSWERS) or 1


def parse_logit_bias(entries: Any) -> dict[int, float]:
    """Return the number that a request adds to the logit of each token id; -100 becomes −inf.

    Raises:
        RefusedError: If the value is not an object from token ids to numbers from -100 to 100.
    """
    if not entries:
        return {}
    try:
        biases = {
            whole_number(token, "logit_bias"): parse_finite(value, "logit_bias") for token, value in entries.items()
        }
    except AttributeError:
        raise RefusedError(
            f"logit_bias: expected an object from token ids to numbers, got {truncate_value(entries)}",
            param="logit_bias",
        ) from None
    if not all(abs(value) <= 100 for value in biases.values()):
        raise RefusedError("logit_bias: every value must be from -100 to 100", param="logit_bias")
    return {token: -math.inf if value <= -100 else value for token, value in biases.items()}


def refuse_penalties(body: Mapping[str, Any]) -> None:
    """Raise `RefusedError` if a request sets a frequency or presence penalty.

    A penalty depends on the tokens sampled before, so the answer would have no log-probs to train on.
    """
    for name in ("frequency_penalty", "presence_penalty"):
        if parse_float(body, name, 0.0, -2, 2):
            raise RefusedError(
                f"{name}: must be 0, because sampled tokens would have no log-probs to train on", param=name
            )


def truncate_value(value: Any) -> str:
    """Return the first 40 characters of a value for an error message."""
    try:
        return str(value)[:40]
    except ValueError:  # a number of thousands of digits
        return "a number too long to write"
