"""What cannot be read: stands where a reward looks for what it judges by, to see what it makes of a failure."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from whetstone.errors import InfrastructureError
from whetstone.rewards.composed import Composed
from whetstone.rewards.judges import Judge, Meter, Question


class Tripped(Exception):
    """Something was read that cannot be."""


class Tripwire(Mapping[str, Any]):
    """A mapping that fails whatever is done with it."""

    def __init__(self) -> None:
        self.touched = False

    def __getitem__(self, key: str) -> Any:
        self._trip()

    def __iter__(self) -> Iterator[str]:
        self._trip()

    def __len__(self) -> int:
        self._trip()

    def _trip(self) -> NoReturn:
        self.touched = True
        raise Tripped("the audit has put something here that cannot be read")


class DeadJudge:
    """A judge that is not there."""

    def __init__(self) -> None:
        self.meter = Meter()

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """None."""
        self.meter.questions += 1
        raise InfrastructureError("the audit has taken the judge away")

    async def close(self) -> None:
        """Nothing is held."""


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
