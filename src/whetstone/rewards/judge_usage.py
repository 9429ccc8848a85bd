"""Judges inside a reward, at any depth, and metrics of their usage."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from whetstone.rewards.composed import Composed
from whetstone.rewards.judges import Judge


def find_judges(reward: Any) -> list[Judge]:
    """Return all judges in a reward, including those of nested rewards; each judge once."""
    judges: list[Judge] = []

    def see(judge: Judge) -> Judge:
        if all(judge is not other for other in judges):
            judges.append(judge)
        return judge

    replace_judges(reward, see)
    return judges


def judge_metrics(reward: Any) -> dict[str, float]:
    """Return the usage of a reward's judges so far: `judge/requests`, `judge/cost`, ….

    The result is empty without a judge.
    """
    total: dict[str, float] = {}
    for judge in find_judges(reward):
        for name, count in asdict(judge.meter).items():
            total[f"judge/{name}"] = total.get(f"judge/{name}", 0.0) + float(count)
    return total


def replace_judges(reward: Any, changed: Callable[[Judge], Judge]) -> Any:
    """Return a copy of a reward in which each judge is replaced by `changed(judge)`, at any depth.

    A reward without judges is returned unchanged.
    """
    if isinstance(reward, functools.partial):
        keywords = {name: replace_judges(value, changed) for name, value in reward.keywords.items()}
        return functools.partial(reward.func, **keywords)
    if isinstance(reward, Judge):
        return changed(reward)
    if isinstance(reward, Composed):
        terms = {name: replace(t, reward=replace_judges(t.reward, changed)) for name, t in reward.terms.items()}
        return reward.with_terms(terms)
    if (
        callable(reward)
        and hasattr(reward, "__dict__")
        and not isinstance(reward, type)
        and not hasattr(reward, "__code__")
    ):
        copied = copy.copy(reward)
        for name, value in vars(copied).items():
            if isinstance(value, Judge) or (callable(value) and not name.startswith("_")):
                setattr(copied, name, replace_judges(value, changed))
        return copied
    return reward
