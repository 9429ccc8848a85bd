"""Is the world as it should be? By a digest of all of it, or by predicates on parts.

Easy to get wrong: only what should have changed may have changed; a digest sees collateral damage, predicates do not.
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
    """1 where the world ended as `task.private` says, else 0.

    `digest`: of `final["state"]`, or `final["digest"]`, of an environment's verdict; `predicates`: a list of
    `{path, is, value}`, each on what the environment said. Both must hold where both are there.

    Args:
        partial_credit: Return the fraction of predicates that hold; the digest must be right in any case.

    Raises:
        ValueError: The task says neither, or the environment says nothing of what is asked.
    """
    final, private = trajectory.final, task.private
    wanted, predicates = private.get("digest"), private.get("predicates", ())
    if wanted is None and not predicates:
        raise ValueError("the task says neither `digest` nor `predicates`")
    if not final:
        if trajectory.ended.cut_short:
            return Score(0.0, {"state": 0.0}, success=False)
        raise ValueError("the environment says nothing of how the world ended (it has no verdict())")
    same = True
    if wanted is not None:
        if "digest" not in final and "state" not in final:
            raise ValueError("the environment's verdict has neither `digest` nor `state`")
        same = final.get("digest", None) == wanted if "digest" in final else digest(final["state"]) == wanted
    held = [holds(final, one) for one in predicates]
    right = same and all(held)
    value = float(same) * (sum(held) / len(held) if held else 1.0) if partial_credit else float(right)
    parts = {"state": float(same)} if wanted is not None else {}
    parts |= {"predicates": sum(held) / len(held)} if held else {}
    return Score(value, parts, success=right)


def digest(value: Any) -> str:
    """Names a state by what is in it: the order of keys and of sets does not count, the order of lists does, and 1 is
    1.0 and not true.

    Raises:
        TypeError: Something in it is no state, such as a function.
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
    raise TypeError(f"a state holds texts, numbers, lists and mappings, got {type(value).__name__}")


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "equal": same_value,
    "not_equal": lambda found, value: not same_value(found, value),
    "at_least": lambda found, value: _number(found) >= value,
    "at_most": lambda found, value: _number(found) <= value,
    "contains": lambda found, value: isinstance(found, Mapping | Sequence) and value in found,
    "lacks": lambda found, value: isinstance(found, Mapping | Sequence) and value not in found,
    "matches": lambda found, value: isinstance(found, str) and re.fullmatch(value, found) is not None,
}


def holds(state: Mapping[str, Any], predicate: Mapping[str, Any]) -> bool:
    """Whether a predicate holds: `path` is dotted, numbers in it are places in lists; what is not there holds nothing.

    Raises:
        ValueError: There is no such relation.
    """
    relation = str(predicate.get("is", "equal"))
    if relation not in _RELATIONS:
        raise ValueError(f'no relation "{relation}"; there are: {", ".join(_RELATIONS)}')
    found: Any = state
    for key in str(predicate["path"]).split("."):
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, Sequence) and not isinstance(found, str) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return False
    return bool(_RELATIONS[relation](found, predicate["value"]))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
