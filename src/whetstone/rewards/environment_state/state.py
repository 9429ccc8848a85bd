"""Final-state reward: compares the final state of the environment by a digest, or by predicates on parts of it.

Note: Nothing but the intended changes may have happened. A digest detects side effects, predicates do not.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whetstone.rewards.calls.canonical import same_value
from whetstone.trajectory import Score, Task, Trajectory


async def state(trajectory: Trajectory, task: Task, *, partial_credit: bool = False) -> Score:
    """Return 1 if the environment's final state is as `task.private` specifies, else 0.

    `digest`: expected digest of `final["state"]`, or `final["digest"]`, of the environment's verdict; `predicates`: a
    list of `{path, is, value}` on the verdict. If both are present, both must hold.

    Args:
        partial_credit: Return the fraction of predicates that hold; the digest must be right in any case.

    Raises:
        ValueError: If the task specifies neither, or the environment's verdict lacks the data.
    """
    final, private = trajectory.final, task.private
    wanted, predicates = private.get("digest"), private.get("predicates", ())
    if wanted is None and not predicates:
        raise ValueError("the task has neither `digest` nor `predicates`; add one of them to its private data")
    if not final:
        if trajectory.ended.cut_short:
            return Score(0.0, {"state": 0.0}, success=False)
        raise ValueError("the environment returns no final state; define verdict() in it")
    same = True
    if wanted is not None:
        if "digest" not in final and "state" not in final:
            raise ValueError("the environment's verdict has neither `digest` nor `state`; return one of them")
        same = final.get("digest", None) == wanted if "digest" in final else state_digest(final["state"]) == wanted
    results = [predicate_holds(final, one) for one in predicates]
    right = same and all(results)
    value = float(same) * (sum(results) / len(results) if results else 1.0) if partial_credit else float(right)
    parts = {"state": float(same)} if wanted is not None else {}
    parts |= {"predicates": sum(results) / len(results)} if results else {}
    return Score(value, parts, success=right)


def state_digest(value: Any) -> str:
    """Compute a hash of the content of a state.

    The order of keys and of sets is ignored, that of lists is not; 1 equals 1.0 and differs from true.

    Raises:
        TypeError: If a value is not plain data, such as a function.
    """
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            return int(value)
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {f"{type(key).__name__}:{key}": _plain(below) for key, below in value.items()}
    if isinstance(value, set | frozenset):
        return {"set": sorted((_plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    raise TypeError(f"a state must consist of texts, numbers, lists and mappings, got {type(value).__name__}")


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "equal": same_value,
    "not_equal": lambda actual, value: not same_value(actual, value),
    "at_least": lambda actual, value: _number(actual) >= value,
    "at_most": lambda actual, value: _number(actual) <= value,
    "contains": lambda actual, value: isinstance(actual, Mapping | Sequence) and value in actual,
    "lacks": lambda actual, value: isinstance(actual, Mapping | Sequence) and value not in actual,
    "matches": lambda actual, value: isinstance(actual, str) and re.fullmatch(value, actual) is not None,
}


def predicate_holds(state: Mapping[str, Any], predicate: Mapping[str, Any]) -> bool:
    """Return whether a predicate on a state holds; a path that does not exist makes it false.

    Args:
        state: State of the environment.
        predicate: Mapping with `path`, `value`, and optionally `is`, the relation. `path` is dotted; numbers in it are
            indices of lists.

    Raises:
        ValueError: If the relation is unknown.
    """
    relation = str(predicate.get("is", "equal"))
    if relation not in _RELATIONS:
        raise ValueError(f'no relation named "{relation}"; use one of {", ".join(_RELATIONS)}')
    current: Any = state
    for key in str(predicate["path"]).split("."):
        if isinstance(current, Mapping) and key in current:
            current = current[key]
        elif (
            isinstance(current, Sequence) and not isinstance(current, str) and key.isdigit() and int(key) < len(current)
        ):
            current = current[int(key)]
        else:
            return False
    return bool(_RELATIONS[relation](current, predicate["value"]))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
