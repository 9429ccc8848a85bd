"""Would a bench say the same again? Its first seeds against those that came later, each judged for itself.

Easy to get wrong: a verdict over all seeds is none of the two; what was said first is compared with what others say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whetstone.analysis.evidence import BenchSettings, claims_of


def repeats_of(settings: BenchSettings, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Claim by claim and part by part, what the first `settings.seeds` seeds say and what the others do.

    A part agrees where the mean of the later seeds lies in the 95 % interval of the first. None where a contender has
    fewer than two later seeds, or fewer than two first ones.

    Args:
        told: A result, or as much of it as `contenders`.
    """
    count = settings.seeds
    sides = [_with(told, lambda seed: seed < count), _with(told, lambda seed: seed >= count)]
    if any(len(each["runs"]) < 2 for side in sides for each in side["contenders"]):
        return []
    found = []
    for claim, again in zip(*(claims_of(settings, side) for side in sides), strict=True):
        for one, other in zip(claim["parts"], again["parts"], strict=True):
            low, high = one["interval"]
            found.append(
                {
                    "paper": claim["paper"],
                    "claim": claim["claim"],
                    "measure": one["measure"],
                    "than": one["than"],
                    "first": one["difference"],
                    "interval": [low, high],
                    "again": other["difference"],
                    "verdicts": [claim["verdict"], again["verdict"]],
                    "agrees": low <= other["difference"] <= high,
                }
            )
    return found


def _with(told: Mapping[str, Any], wanted: Callable[[int], bool]) -> dict[str, Any]:
    runs = [{**each, "runs": [run for run in each["runs"] if wanted(run["seed"])]} for each in told["contenders"]]
    return {"contenders": runs}
