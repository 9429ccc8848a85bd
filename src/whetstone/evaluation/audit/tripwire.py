"""What cannot be read: stands where a reward looks for what it judges by, to see what it makes of a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from whetstone.errors import InfrastructureError
from whetstone.rewards.judges import Meter, Question


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
        self.meter.requests += 1
        raise InfrastructureError("the audit has taken the judge away")

    async def close(self) -> None:
        """Nothing is held."""
