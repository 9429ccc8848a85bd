"""What of all a model can say reaches a game? A command of plain text and bounded length, read in one place for games,
seats and servers.

Easy to get wrong: JSON can hold what no game expects. A NUL ends a text in the middle of an interpreter written in C,
half a surrogate pair can be written nowhere, brackets nested a thousand deep end the reader, and a pattern may take the
square of a text's length. None of it may end an episode as a fault: faults leave the statistics, and what leaves them
is free.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Literal

from whetstone.chat import Message, ToolSpec, tool_result, user
from whetstone.tools.plain_text import plain
from whetstone.trajectory import CallRecord

Actions = Literal["call", "text"]
TOOL = "act"
LONGEST, LONGEST_WHOLE = 2_000, 20_000
"""Characters a command may have; and one that is all of what is said."""
ODD: tuple[type[Exception], ...] = (ValueError, OverflowError, RecursionError)
"""What a game raises on a command it cannot read: a number too large, a text that cannot be encoded, nesting too deep.
It is answered, and costs the turn."""
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def command_of(action: Message, actions: Actions, *, whole: bool = False, one_line: bool = True) -> str | None:
    """The command in an action, as plain text; None where there is none, or one that is too long.

    Args:
        actions: `call`: it is the argument of `act`. `text`: what stands between the last tags, else the last line.
        whole: As text it is all of what is said.
        one_line: Line breaks become blanks, unless it is the `whole`.
    """
    said = _said(action, actions, whole)
    if said is None or len(said) > longest(whole):
        return None
    said = plain(said)
    return (" ".join(said.split("\n")) if one_line and not whole else said).strip()


def why_none(action: Message, actions: Actions, *, whole: bool = False) -> str:
    """Why there is no command in an action that is one call or none, for the model to read."""
    said = _said(action, actions, whole)
    if said is not None:
        return f"a command has at most {longest(whole)} characters, got {len(said)}"
    if not action.tool_calls:
        return f"that is no call; give a command with {TOOL}"
    (call,) = action.tool_calls
    return plain(f"call {TOOL}(command), got {call.name[:100]}({call.arguments[:200]})")


def longest(whole: bool) -> int:
    """Characters a command may have."""
    return LONGEST_WHOLE if whole else LONGEST


def answered(
    action: Message, text: str, *, understood: bool = True, seconds: float = 0.0
) -> tuple[tuple[Message, ...], tuple[CallRecord, ...]]:
    """(a text as the answer to a command, the record of its call where it was one)"""
    shown = plain(text)
    if not action.tool_calls:
        return (user(shown),), ()
    record = CallRecord(TOOL, "ok" if understood else "tool_error", seconds)
    return (tool_result(shown, call_id=action.tool_calls[0].id or None),), (record,)


def whole_number(text: str, *, digits: int = 6) -> int | None:
    """The number a text writes in so many digits or fewer, from 0 on; None where it is none.

    >>> whole_number("12"), whole_number("²"), whole_number("9" * 5000)
    (12, None, None)
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None


def arguments_of(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None where they are no JSON object."""
    try:
        read = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


@functools.lru_cache(maxsize=256)
def tool_of(commands: tuple[str, ...]) -> ToolSpec:
    """The tool `act`, for these commands where they are always the same."""
    parameter: dict[str, Any] = {"type": "string", "description": "The command."}
    if commands:
        parameter["enum"] = list(commands)
    schema = {"type": "object", "properties": {"command": parameter}, "required": ["command"]}
    return ToolSpec(TOOL, "Give the game one command.", {**schema, "additionalProperties": False})


def _said(action: Message, actions: Actions, whole: bool) -> str | None:
    """The command as it was said."""
    if action.malformed or len(action.tool_calls) > 1:
        return None
    if action.tool_calls:
        (call,) = action.tool_calls
        command = (arguments_of(call.arguments) or {}).get("command") if call.name == TOOL else None
        return command if isinstance(command, str) else None
    if actions == "call":
        return None
    tagged = _TAGGED.findall(action.text)
    if tagged:
        return str(tagged[-1]).strip()
    return action.text.strip() if whole else action.text.strip().rpartition("\n")[2].strip()


def _no_number(said: str) -> Any:
    raise ValueError(f"{said} is not a number JSON has")
