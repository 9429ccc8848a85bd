"""Parsing of text commands for games, seats and servers: from a message of the model to one line of bounded length.

Note:
    JSON can contain text that games do not expect. A NUL ends a string inside an interpreter written in C, half a
    surrogate pair cannot be encoded, deeply nested brackets exceed the parser's recursion limit, and a regular
    expression may take quadratic time. None of these may end an episode as a fault: faults are excluded from the
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
"""Name of the tool whose argument is the command."""
LONGEST, LONGEST_WHOLE = 2_000, 20_000
"""Maximum characters of a command; and of a command that is the full text of a message."""
UNREADABLE_ERRORS: tuple[type[Exception], ...] = (ValueError, OverflowError, RecursionError)
"""Exceptions of a game for a command that it cannot read, such as a number that is too large, a text that cannot be
encoded, or too deep nesting. The model gets an error message, and the turn counts."""
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def parse_command(action: Message, actions: Actions, *, multiline: bool = False, one_line: bool = True) -> str | None:
    """Return the command of an action as plain text; None without a valid command.

    An action has no valid command if it is malformed, has several calls or calls another tool than `act`, or if its
    command is longer than `max_command_characters`.

    Args:
        action: Message of the model.
        actions: `call`: the command is the argument of `act`. `text`: the text between the last tags `<action>` and
            `</action>`, or else the last line.
        multiline: As text, the command is the full message.
        one_line: Replace line breaks by blanks, unless `multiline`.
    """
    text = _raw_command(action, actions, multiline)
    if text is None or len(text) > max_command_characters(multiline):
        return None
    text = sanitize_text(text)
    return (" ".join(text.split("\n")) if one_line and not multiline else text).strip()


def describe_parse_failure(action: Message, actions: Actions, *, multiline: bool = False) -> str:
    """Return the reason why `parse_command` found no command in an action.

    The text is shown to the model. The action has at most one call.
    """
    text = _raw_command(action, actions, multiline)
    if text is not None:
        return f"a command has at most {max_command_characters(multiline)} characters, got {len(text)}"
    if not action.tool_calls:
        return f"that is no call; give a command with {TOOL}"
    (call,) = action.tool_calls
    return sanitize_text(f"call {TOOL}(command), got {call.name[:100]}({call.arguments[:200]})")


def max_command_characters(multiline: bool) -> int:
    """Return the maximum number of characters of a command.

    Args:
        multiline: Whether the command is the full text of a message.
    """
    return LONGEST_WHOLE if multiline else LONGEST


def command_result(
    action: Message, text: str, *, understood: bool = True, seconds: float = 0.0
) -> tuple[tuple[Message, ...], tuple[CallRecord, ...]]:
    """Return the messages and the call records that answer the command of an action.

    A command by `act` gets a tool result and a record; a command as text gets a user message and no record.

    Args:
        action: Message of the model with a valid command.
        text: Text that the model reads.
        understood: Whether the game accepted the command; otherwise the record's outcome is `tool_error`.
        seconds: Duration of the command in seconds.
    """
    content = sanitize_text(text)
    if not action.tool_calls:
        return (user(content),), ()
    record = CallRecord(TOOL, "ok" if understood else "tool_error", seconds)
    return (tool_result(content, call_id=action.tool_calls[0].id or None),), (record,)


def parse_whole_number(text: str, *, digits: int = 6) -> int | None:
    """Parse a nonnegative whole number of at most `digits` ASCII digits.

    Return None for other texts.

    >>> parse_whole_number("12"), parse_whole_number("²"), parse_whole_number("9" * 5000)
    (12, None, None)
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None


def parse_or_none(text: str) -> dict[str, Any] | None:
    """Parse the JSON arguments of a tool call; None if they are not a JSON object."""
    try:
        read = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


@functools.lru_cache(maxsize=256)
def command_tool(commands: tuple[str, ...]) -> ToolSpec:
    """Return the spec of the tool `act`, whose argument is the command.

    Args:
        commands: All commands of a game with a constant set, which become an enum; empty: any text.
    """
    parameter: dict[str, Any] = {"type": "string", "description": "The command."}
    if commands:
        parameter["enum"] = list(commands)
    schema = {"type": "object", "properties": {"command": parameter}, "required": ["command"]}
    return ToolSpec(TOOL, "Give the game one command.", {**schema, "additionalProperties": False})


def _raw_command(action: Message, actions: Actions, multiline: bool) -> str | None:
    """Return the command as the model wrote it, or None if the action has no command."""
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
