"""BFCL reward: compares tool calls with accepted values, like the Berkeley Function-Calling Leaderboard.

Note: A float parameter accepts an integer, an integer parameter no float; a boolean is neither. A value with the type
of the accepted value has the right type, whatever the schema specifies: a variable name, for example, is a string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from whetstone.rewards.calls.canonical import Call, list_calls, same_value
from whetstone.tasks.literals import LANGUAGES
from whetstone.trajectory import EndReason, Score, Task, Trajectory

_TYPES: Mapping[str, tuple[type, ...]] = {
    name: kinds
    for names, kinds in (
        ("integer int long", (int,)),
        ("float number double", (float, int)),
        ("string str char", (str,)),
        ("boolean bool", (bool,)),
        ("array list tuple arraylist", (list,)),
        ("object dict hashmap", (dict,)),
        ("null", (type(None),)),
    )
    for name in names.split()
}
_STRIPPED = re.compile(r"[ ,./\-_*^]")


async def bfcl(trajectory: Trajectory, task: Task, *, as_published: bool = False) -> Score:
    """Return 1 if the calls are exactly those that `task.private["possible_answer"]` accepts, in any order, else 0.

    `possible_answer` is a list of `{function: {parameter: [accepted values]}}`, with `""` among the values if the
    parameter is optional. An empty list requires no call; null accepts any call of an existing function.
    `task.private["functions"]` contains the functions' schemas. With `task.private["language"]`, `java` or
    `javascript`, each value is a string of source code.

    Args:
        as_published: Count like the leaderboard: if any call is accepted, so is one of an unknown function. For
            comparable results, not for training.

    Source: Patil et al., Berkeley Function-Calling Leaderboard, https://github.com/ShishirPatil/gorilla
        (`ast_checker`).
    """
    calls = list_calls(trajectory)
    possible: Sequence[Mapping[str, Mapping[str, Any]]] | None = task.private["possible_answer"]
    schemas = {str(schema["name"]): schema for schema in task.private.get("functions", ())}
    unreadable = any(turn.message.malformed for turn in trajectory.turns) or trajectory.ended is EndReason.MAX_TOKENS
    if possible is None:
        names = {name.replace(".", "_") for name in schemas} | schemas.keys()
        known = as_published or all(call.has_valid_arguments and call.name in names for call in calls)
        right = bool(calls) and not unreadable and known
        return Score(float(right), {"correct": float(right)}, success=right)
    language = str(task.private.get("language", ""))
    fits = [[mismatch_reason(call, one, schemas, language) == "" for one in possible] for call in calls]
    matched = _pairs(fits) if calls and possible else 0
    right = not unreadable and matched == len(calls) == len(possible)
    parts = {
        "correct": float(right),
        "count": float(len(calls) == len(possible)),
        "matched": matched / max(1, len(calls), len(possible)),
    }
    return Score(float(right), parts, success=right)


def mismatch_reason(
    call: Call, possible: Mapping[str, Mapping[str, Any]], schemas: Mapping[str, Any], language: str = ""
) -> str:
    """Return why a call does not match an accepted call; empty if it matches.

    Args:
        call: Call of the agent.
        possible: Accepted call: `{function: {parameter: [accepted values]}}`.
        schemas: Schemas of the functions by name.
        language: `java` or `javascript` if values are source code, else empty.
    """
    ((name, accepted),) = possible.items()
    if call.name not in (name, name.replace(".", "_")):
        return f"{call.name} is called, not {name}"
    parameters = schemas.get(name, {}).get("parameters", {})
    properties, required = parameters.get("properties", {}), parameters.get("required", ())
    for key in required:
        if key not in call.arguments:
            return f"{key} is missing"
    for key, value in call.arguments.items():
        if key not in accepted or (properties and key not in properties):
            return f"there is no {key}"
        if language:
            if not isinstance(value, str):
                return f"{key} is {value!r}, not a text in {language}"
            schema = properties.get(key, {})
            value = LANGUAGES[language](value, str(schema.get("type")), str(schema.get("items", {}).get("type", "")))
        if not _typed(value, str(properties.get(key, {}).get("type", "")), accepted[key]):
            return f"{key} is {value!r}, which has another type"
        if not any(_accepted(value, one) for one in accepted[key] if not (one == "" and value != "")):
            return f"{key} is {value!r}"
    for key, values in accepted.items():
        if key not in call.arguments and "" not in values:
            return f"{key} is left out"
    return ""


def _typed(value: Any, kind: str, accepted: Sequence[Any]) -> bool:
    kinds = _TYPES.get(kind.lower())
    if kinds is None or type(value) is next((type(one) for one in accepted if one != ""), None):
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds)


def _accepted(value: Any, one: Any) -> bool:
    if isinstance(value, str) and isinstance(one, str):
        return _bare(value) == _bare(one)
    if isinstance(value, list) and isinstance(one, list):
        return len(value) == len(one) and all(map(_accepted, value, one))
    if isinstance(value, dict) and isinstance(one, dict):  # each key of a mapping has its accepted values
        return all(
            key in one and any(_same(below, each) for each in _values(one[key])) for key, below in value.items()
        ) and all(key in value or "" in _values(values) for key, values in one.items())
    return same_value(value, one)


def _same(value: Any, one: Any) -> bool:
    """Return whether a value inside a mapping equals an accepted value."""
    if isinstance(value, str) and isinstance(one, str):
        return _bare(value) == _bare(one)
    if isinstance(value, list) and isinstance(one, list):
        return len(value) == len(one) and all(map(_same, value, one))
    if isinstance(value, dict) and isinstance(one, dict):
        return value.keys() == one.keys() and all(_same(below, one[key]) for key, below in value.items())
    return same_value(value, one)


def _values(accepted: Any) -> Sequence[Any]:
    """Return accepted values as a sequence; a string instead of a list is split into its letters, like the leaderboard
    does.
    """
    return list(accepted) if isinstance(accepted, str | list) else [accepted]


def _bare(text: str) -> str:
    return _STRIPPED.sub("", text).lower().replace("'", '"')


def _pairs(fits: Sequence[Sequence[bool]]) -> int:
    """Return the size of a maximum matching of calls to accepted calls."""
    matrix = np.array(fits, dtype=float)
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    return int(matrix[rows, columns].sum())
