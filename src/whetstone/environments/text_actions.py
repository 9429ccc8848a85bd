"""Parsing of commands: from a message of the model to one plain text of bounded length, for games, seats and servers.

Note:
    JSON can contain text that games do not expect. A NUL ends a string inside an interpreter written in C, half a
    surrogate pair cannot be encoded, deeply nested brackets exceed the parser's recursion limit, and a regular
    expression may take quadratic time. None of it may end an episode as a fault: faults are excluded from the
    statistics, so the model would not be penalized.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Literal

from whetstone.chat import Message, ToolSpec, tool_result, user
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import CallRecord

Actions = Literal["call", "text"]
TOOL = "act"
LONGEST, LONGEST_WHOLE = 2_000, 20_000
"""Maximum characters of a command; and of a command that is the full text of a message."""
UNREADABLE_ERRORS: tuple[type[Exception], ...] = (ValueError, OverflowError, RecursionError)
"""Exceptions of a game for a command that it cannot read: a number too large, a text that cannot be encoded, nesting
too deep. The model gets an error message, and the turn counts."""
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def parse_command(action: Message, actions: Actions, *, multiline: bool = False, one_line: bool = True) -> str | None:
    """Return the command of an action as plain text.

    None if there is none, or if it is too long.

    Args:
        actions: `call`: the argument of `act`. `text`: the text between the last tags, or else the last line.
        multiline: As text, the command is the full message.
        one_line: Replace line breaks by blanks, unless `multiline`.
    """
    text = _raw_command(action, actions, multiline)
    if text is None or len(text) > max_command_characters(multiline):
        return None
    text = sanitize_text(text)
    return (" ".join(text.split("\n")) if one_line and not multiline else text).strip()


def describe_parse_failure(action: Message, actions: Actions, *, multiline: bool = False) -> str:
    """Return why an action with at most one call has no command; the model reads it."""
    text = _raw_command(action, actions, multiline)
    if text is not None:
        return f"a command has at most {max_command_characters(multiline)} characters, got {len(text)}"
    if not action.tool_calls:
        return f"that is no call; give a command with {TOOL}"
    (call,) = action.tool_calls
    return sanitize_text(f"call {TOOL}(command), got {call.name[:100]}({call.arguments[:200]})")


def max_command_characters(multiline: bool) -> int:
    """Return the maximum number of characters of a command."""
    return LONGEST_WHOLE if multiline else LONGEST


def command_result(
    action: Message, text: str, *, understood: bool = True, seconds: float = 0.0
) -> tuple[tuple[Message, ...], tuple[CallRecord, ...]]:
    """Return the messages and the call record that answer a command."""
    content = sanitize_text(text)
    if not action.tool_calls:
        return (user(content),), ()
    record = CallRecord(TOOL, "ok" if understood else "tool_error", seconds)
    return (tool_result(content, call_id=action.tool_calls[0].id or None),), (record,)


def parse_whole_number(text: str, *, digits: int = 6) -> int | None:
    """Parse a whole number from 0 on, of at most `digits` digits.

    None if the text is not one.

    >>> parse_whole_number("12"), parse_whole_number("²"), parse_whole_number("9" * 5000)
    (12, None, None)
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None


def parse_or_none(text: str) -> dict[str, Any] | None:
    """Parse the arguments of a call; None if they are not a JSON object."""
    try:
        read = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


@functools.lru_cache(maxsize=256)
def command_tool(commands: tuple[str, ...]) -> ToolSpec:
    """Return the tool `act`, with an enum if the commands are constant."""
    parameter: dict[str, Any] = {"type": "string", "description": "The command."}
    if commands:
        parameter["enum"] = list(commands)
    schema = {"type": "object", "properties": {"command": parameter}, "required": ["command"]}
    return ToolSpec(TOOL, "Give the game one command.", {**schema, "additionalProperties": False})


def _raw_command(action: Message, actions: Actions, multiline: bool) -> str | None:
    """Return the command as the model wrote it."""
    if action.malformed or len(action.tool_calls) > 1:
        return None
    if action.tool_calls:
        (call,) = action.tool_calls
        command = (parse_or_none(call.arguments) or {}).get("command") if call.name == TOOL else None
        return command if isinstance(command, str) else None
    if actions == "call":
        return None
    tagged = _TAGGED.findall(action.text)
    if tagged:
        return str(tagged[-1]).strip()
    return action.text.strip() if multiline else action.text.strip().rpartition("\n")[2].strip()


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")
