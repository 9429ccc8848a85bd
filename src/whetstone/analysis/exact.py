"""Stored rows of exact checks: properties that papers claim, shown without training.

`exact.json` is written by `python -m benchmarks exact_checks --write`; a test recomputes each row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

Relation = Literal["=", "<", "<=", ">", ">="]
SHOWN, REFUTED = "property shown", "property does not hold"
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of an exact check, with its expected and measured value."""

    quantity: str
    """Description of the quantity."""
    relation: Relation
    """Relation that the measured value must have to the expected one."""
    expected: float
    """Expected value."""
    measured: float
    """Measured value."""

    @property
    def holds(self) -> bool:
        """Return whether the measured value has the required relation to the expected value, up to rounding."""
        slack = _TOLERANCE * max(1.0, abs(self.expected))
        gap = self.measured - self.expected
        match self.relation:
            case "=":
                return abs(gap) <= slack
            case "<=":
                return gap <= slack
            case ">=":
                return gap >= -slack
            case "<":
                return gap < -slack
            case ">":
                return gap > slack

    @property
    def text(self) -> str:
        """Format quantity, expected value with its relation, and measured value, in one line."""
        relation = "" if self.relation == "=" else f"{self.relation} "
        return f"{self.quantity}: expected {relation}{self.expected:.4g}, measured {self.measured:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; numbers are rounded to six significant digits."""
        values = {"quantity": self.quantity, "relation": self.relation}
        return {**values, "expected": _rounded(float(self.expected)), "measured": _rounded(float(self.measured))}


@dataclass(frozen=True, slots=True)
class ExactRow:
    """The stored result of one exact check."""

    check: str
    """Name of the check and of its test, `tests/papers/test_exact.py::test_property[NAME]`."""
    papers: Sequence[str]
    """Keys of the papers in `papers.yaml`."""
    claim: str
    """Property that the check shows."""
    components: Sequence[str]
    """Import paths of the components under test."""
    figures: Sequence[Figure]
    """Quantities with their expected and measured values."""
    note: str = ""
    """Difference from the paper."""

    @property
    def verdict(self) -> str:
        """Return `property shown` if every figure holds, and otherwise the opposite verdict."""
        return SHOWN if all(figure.holds for figure in self.figures) else REFUTED

    @property
    def sentence(self) -> str:
        """Format property, figures and test in one line."""
        note = f"; {self.note}" if self.note else ""
        figures = "; ".join(figure.text for figure in self.figures)
        return f"{self.verdict} (test_property[{self.check}]): {self.claim}. {figures}{note}"

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values, as stored in `exact.json`."""
        figures = [figure.to_json() for figure in self.figures]
        values = {name: getattr(self, name) for name in ("check", "claim", "components", "note", "verdict")}
        return {**values, "figures": figures}


def read_exact_rows(rows: Sequence[Mapping[str, Any]]) -> list[ExactRow]:
    """Convert rows of `exact.json` into typed values."""
    return [ExactRow(**{**row, "figures": [Figure(**figure) for figure in row["figures"]]}) for row in rows]


def stored_rows() -> list[ExactRow]:
    """Load the rows of `exact.json`, which is part of the package."""
    return read_exact_rows(json.loads((files("whetstone.analysis") / "exact.json").read_text(encoding="utf-8")))


def _rounded(value: float) -> float:
    if abs(value) < 1e-9:
        return 0.0
    return round(value, 5 - math.floor(math.log10(abs(value))))
