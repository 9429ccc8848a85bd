"""Are the calls among those that may be? As the function-calling leaderboard compares them: by accepted values.

Easy to get wrong: a float parameter takes an integer, an integer one no float; and a flag is neither. A value of the
accepted one's type is of the right type, whatever the schema says: where a variable is named, it is a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from whetstone.rewards.calls.canonical import Call, calls_of, same_value
from whetstone.tasks.source_values import LANGUAGES
from whetstone.trajectory import EndReason, Score, Task, Trajectory

_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "int": (int,),
    "float": (float, int),
    "number": (float, int),
    "double": (float, int),
    "string": (str,),
    "str": (str,),
    "boolean": (bool,),
    "bool": (bool,),
    "array": (list,),
    "list": (list,),
    "tuple": (list,),
    "arraylist": (list,),
    "object": (dict,),
    "dict": (dict,),
    "hashmap": (dict,),
    "long": (int,),
    "char": (str,),
    "null": (type(None),),
}
_STRIPPED = re.compile(r"[ ,./\-_*^]")


async def bfcl(trajectory: Trajectory, task: Task, *, as_published: bool = False) -> Score:
    """1 where the calls are exactly those `task.private["possible_answer"]` accepts, in any order, else 0.

    `possible_answer` is a list of `{function: {parameter: [accepted values]}}`, `""` among them where the parameter may
    be left out; empty where nothing is to be called, and null where any call of a function there is will do.
    `task.private["functions"]` has the functions' schemas; where there is a `task.private["language"]`, `java` or
    `javascript`, each value is a text in it.

    Args:
        as_published: Count as the leaderboard counts: where any call will do, so does one of a function that is not
            there. For figures to compare, not to train on.

    Source: Patil et al., Berkeley Function-Calling Leaderboard, https://github.com/ShishirPatil/gorilla
        (`ast_checker`).
    """
    made = calls_of(trajectory)
    possible: Sequence[Mapping[str, Mapping[str, Any]]] | None = task.private["possible_answer"]
    schemas = {str(schema["name"]): schema for schema in task.private.get("functions", ())}
    unreadable = any(turn.message.malformed for turn in trajectory.turns) or trajectory.ended is EndReason.MAX_TOKENS
    if possible is None:
        names = {name.replace(".", "_") for name in schemas} | schemas.keys()
        known = as_published or all(call.readable and call.name in names for call in made)
        right = bool(made) and not unreadable and known
        return Score(float(right), {"correct": float(right)}, success=right)
    language = str(task.private.get("language", ""))
    fits = [[why_not(call, one, schemas, language) == "" for one in possible] for call in made]
    matched = _pairs(fits) if made and possible else 0
    right = not unreadable and matched == len(made) == len(possible)
    parts = {
        "correct": float(right),
        "count": float(len(made) == len(possible)),
        "matched": matched / max(1, len(made), len(possible)),
    }
    return Score(float(right), parts, success=right)


def why_not(
    call: Call, possible: Mapping[str, Mapping[str, Any]], schemas: Mapping[str, Any], language: str = ""
) -> str:
    """Why a call is not accepted; empty where it is."""
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
    if isinstance(value, dict) and isinstance(one, dict):  # of a mapping, each key has its accepted values
        return all(
            key in one and any(_same(below, each) for each in _values(one[key])) for key, below in value.items()
        ) and all(key in value or "" in _values(values) for key, values in one.items())
    return same_value(value, one)


def _same(value: Any, one: Any) -> bool:
    """Whether a value inside a mapping is the accepted one, which is written as it is."""
    if isinstance(value, str) and isinstance(one, str):
        return _bare(value) == _bare(one)
    if isinstance(value, list) and isinstance(one, list):
        return len(value) == len(one) and all(map(_same, value, one))
    if isinstance(value, dict) and isinstance(one, dict):
        return value.keys() == one.keys() and all(_same(below, one[key]) for key, below in value.items())
    return same_value(value, one)


def _values(given: Any) -> Sequence[Any]:
    """Accepted values; of a text that stands where a list should, its letters, as the leaderboard has it."""
    return list(given) if isinstance(given, str | list) else [given]


def _bare(text: str) -> str:
    return _STRIPPED.sub("", text).lower().replace("'", '"')


def _pairs(fits: Sequence[Sequence[bool]]) -> int:
    """How many calls can be accepted at once, each by another possible one."""
    matrix = np.array(fits, dtype=float)
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    return int(matrix[rows, columns].sum())
