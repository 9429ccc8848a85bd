"""Canonical form of tool calls for comparison: a name and parsed arguments, never text.

Note: In Python `1 == True`. A boolean is not a number; an integer can equal a float. Unicode can encode a letter in
two ways. Unparseable arguments differ from no arguments: some functions take none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from whetstone.trajectory import EndReason, Task, Trajectory

_UNREADABLE = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Tool call with parsed arguments."""

    name: str
    """Tool name; empty matches any tool."""
    arguments: Mapping[str, Any]
    """Parsed arguments; unparseable text is stored under the empty name, which no function has."""
    turn: int = 0
    """Index of the turn that made the call; 0 for gold calls."""

    @property
    def has_valid_arguments(self) -> bool:
        """Return whether the arguments could be parsed as a JSON object."""
        return _UNREADABLE not in self.arguments


def list_calls(trajectory: Trajectory) -> list[Call]:
    """List all tool calls of an episode in order, with parsed arguments.

    Calls in a last turn that was truncated were never executed and are left out. Arguments that are not a JSON object
    are stored as `Call.arguments` describes.
    """
    num_complete = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    return [
        Call(call.name, _arguments(call.arguments), number)
        for number, turn in enumerate(trajectory.turns[:num_complete])
        for call in turn.message.tool_calls
    ]


def gold_calls(task: Task) -> list[Call]:
    """Return the gold calls in `task.private["calls"]`: mappings with `arguments` and optionally `name`."""
    return [Call(str(call.get("name", "")), call["arguments"]) for call in task.private["calls"]]


def parse_or_empty(text: str) -> Mapping[str, Any]:
    """Parse the arguments of a call as a JSON object; empty if they cannot be parsed."""
    arguments = _arguments(text)
    return {} if _UNREADABLE in arguments else arguments


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_UNREADABLE: text}


def same_value(one: Any, other: Any) -> bool:
    """Return whether two parsed JSON values are equal, including their types; the order of keys is ignored.

    >>> same_value({"n": 1, "m": [2]}, {"m": [2.0], "n": 1}), same_value(1, True), same_value("1", 1)
    (True, False, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and normalize("NFC", one) == normalize("NFC", other)
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(same_value, one, other))
    return one is None and other is None


def same_call(one: Call, other: Call) -> bool:
    """Return whether two calls have the same name and equal arguments, in any turn."""
    return one.name == other.name and same_value(one.arguments, other.arguments)
