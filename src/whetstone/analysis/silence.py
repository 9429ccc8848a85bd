"""Could a comparison have shown anything? Not where nobody gets anywhere, where everybody gets there, or where a switch
never acted. Such a comparison asks for a harder or an easier bench and says nothing against a paper.

Easy to get wrong: equal means are no sign of it; two contenders that are right in different tasks differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARES = ("success", "area under the curve")
"""Measures with a bottom and a top."""
FLOOR, CEILING = 0.03, 0.97


def sides_of(told: Mapping[str, Any], claim: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Contender → seed → measured, of the two that a part of a claim compares.

    Args:
        told: A result, or as much of it as `contenders`.
        claim: One of its claims, as `claims_of` judged it.
        part: One of the claim's.
    """
    runs = {each["name"]: each["runs"] for each in told["contenders"]}
    both = {
        name: {run["seed"]: run["measures"][part["measure"]] for run in runs[name] if not run["failed"]}
        for name in (claim["better"], part["than"])
    }
    return {name: {s: v for s, v in seeds.items() if v is not None} for name, seeds in both.items()}


def silence_of(told: Mapping[str, Any], claim: Mapping[str, Any], part: Mapping[str, Any]) -> str | None:
    """Why a part of a claim could have shown nothing, if so; None for measures without a bottom and a top.

    Args:
        told, claim, part: As of `sides_of`.
    """
    if part["measure"] not in SHARES:
        return None
    every = [value for seeds in sides_of(told, claim, part).values() for value in seeds.values()]
    if max(every) <= FLOOR:
        return "nobody gets anywhere"
    if min(every) >= CEILING:
        return "everybody gets there"
    equal = part["measure"] == "success" and _same_outcomes(told, claim["better"], part["than"])
    return "equal in every task" if equal else None


def _same_outcomes(told: Mapping[str, Any], ours: str, theirs: str) -> bool:
    """Whether both were right and wrong in the same tasks, seed by seed."""
    of = {each["name"]: {run["seed"]: run.get("outcomes") for run in each["runs"]} for each in told["contenders"]}
    return all(of[ours][seed] == of[theirs][seed] for seed in of[ours].keys() & of[theirs].keys())
