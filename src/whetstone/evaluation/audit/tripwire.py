"""Failing substitutes for a reward's inputs, to test how the reward handles a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from whetstone.errors import InfrastructureError
from whetstone.rewards.judges import Meter, Question


class Tripped(Exception):
    """Raised if a substitute is read."""


class Tripwire(Mapping[str, Any]):
    """Mapping that raises on any access."""

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
        raise Tripped("the audit has replaced this input by one that cannot be read")


class DeadJudge:
    """Judge that always fails."""

    def __init__(self) -> None:
        self.meter = Meter()

    async def answer(self, question: Question) -> Mapping[str, Any]:
        """Count the request and raise."""
        self.meter.requests += 1
        raise InfrastructureError("the audit has replaced the judge by one that fails")

    async def close(self) -> None:
        """Do nothing."""
