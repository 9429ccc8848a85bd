"""Which judges does a reward ask, however deep they are?"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from whetstone.rewards.composed import Composed
from whetstone.rewards.judges import Judge


def judges_of(reward: Any) -> list[Judge]:
    """Every judge in it, each once."""
    found: list[Judge] = []

    def see(judge: Judge) -> Judge:
        if all(judge is not other for other in found):
            found.append(judge)
        return judge

    with_judges(reward, see)
    return found


def judge_metrics(reward: Any) -> dict[str, float]:
    """Return the use of its judges since the start: `judge/requests`, `judge/cost`, …; empty without a judge."""
    total: dict[str, float] = {}
    for judge in judges_of(reward):
        for name, count in asdict(judge.meter).items():
            total[f"judge/{name}"] = total.get(f"judge/{name}", 0.0) + float(count)
    return total


def with_judges(reward: Any, changed: Callable[[Judge], Judge]) -> Any:
    """The same reward with other judges in it, however deep they are; itself where it has none."""
    if isinstance(reward, functools.partial):
        keywords = {name: with_judges(value, changed) for name, value in reward.keywords.items()}
        return functools.partial(reward.func, **keywords)
    if isinstance(reward, Judge):
        return changed(reward)
    if isinstance(reward, Composed):
        terms = {name: replace(t, reward=with_judges(t.reward, changed)) for name, t in reward.terms.items()}
        return Composed(terms=terms, success=reward.success)
    if (
        callable(reward)
        and hasattr(reward, "__dict__")
        and not isinstance(reward, type)
        and not hasattr(reward, "__code__")
    ):
        again = copy.copy(reward)
        for name, value in vars(again).items():
            if isinstance(value, Judge) or (callable(value) and not name.startswith("_")):
                setattr(again, name, with_judges(value, changed))
        return again
    return reward
