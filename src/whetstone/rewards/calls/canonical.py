"""What is a call, when two are compared? A name and parsed arguments, never text.

Easy to get wrong: in Python `1 == True`. A flag is not a number; an integer may be the same as a float. A letter can be
written in two ways in Unicode. Arguments that cannot be read are not no arguments: some functions take none.
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
    """One call."""

    name: str
    """Empty: any tool's."""
    arguments: Mapping[str, Any]
    """Those that cannot be read are one without a name, which no function takes: the text."""
    turn: int = 0
    """The turn it was made in; 0 for gold calls."""

    @property
    def readable(self) -> bool:
        """Whether its arguments could be read."""
        return _UNREADABLE not in self.arguments


def calls_of(trajectory: Trajectory) -> list[Call]:
    """Every call of an episode, in order; see `Call` for arguments that are no JSON object. What stands in a last turn
    that was cut off before its end was never carried out, and is no call."""
    whole = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    return [
        Call(call.name, _arguments(call.arguments), number)
        for number, turn in enumerate(trajectory.turns[:whole])
        for call in turn.message.tool_calls
    ]


def gold_calls(task: Task) -> list[Call]:
    """`task.private["calls"]`: mappings with `arguments` and, where the tool matters, `name`."""
    return [Call(str(call.get("name", "")), call["arguments"]) for call in task.private["calls"]]


def arguments_of(text: str) -> Mapping[str, Any]:
    """A call's arguments; none where they cannot be read."""
    found = _arguments(text)
    return {} if _UNREADABLE in found else found


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_UNREADABLE: text}


def same_value(one: Any, other: Any) -> bool:
    """Whether two parsed values are the same: with their types, in any order of keys.

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
    """Whether two calls are the same, wherever they were made."""
    return one.name == other.name and same_value(one.arguments, other.arguments)
