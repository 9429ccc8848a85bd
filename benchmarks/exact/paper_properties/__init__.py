"""Exact checks of the properties that papers claim, on built-in components, without training.

A check enumerates or recomputes a property and returns figures: quantity, relation, expected and measured value.
`exact_checks.py` runs all checks and stores their rows; `tests/papers/test_exact.py` runs each as a test.

Note:
    Expected values come from the paper's formula or from enumeration, never from the component under test.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whetstone.analysis.exact import Figure

Run = Callable[[], Sequence[Figure]]

_CHECKS: dict[str, Check] = {}


class Check:
    """One property of one or more papers and the function that measures it."""

    def __init__(self, run: Run, papers: tuple[str, ...], components: tuple[str, ...], note: str) -> None:
        self.run, self.papers, self.components, self.note = run, papers, components, note
        self.name = run.__name__
        self.claim = " ".join((run.__doc__ or "").split())

    def measure_row(self) -> dict[str, Any]:
        """Run the check and return its row as stored in `exact.json`."""
        return {
            "check": self.name,
            "papers": list(self.papers),
            "claim": self.claim.rstrip("."),
            "components": list(self.components),
            "figures": [figure.to_json() for figure in self.run()],
            "note": self.note,
        }


def exact(*papers: str, of: Callable[..., Any] | Sequence[Callable[..., Any]], note: str = "") -> Callable[[Run], Run]:
    """Register a check; its docstring is the property.

    Args:
        papers: Keys of `papers.yaml`.
        of: Components under test.
        note: Difference from the paper, if any.
    """
    components = of if isinstance(of, Sequence) else [of]

    def register(run: Run) -> Run:
        if run.__name__ in _CHECKS:
            raise ValueError(f"{run.__name__}: two checks have this name; rename one")
        _CHECKS[run.__name__] = Check(run, papers, tuple(map(qualified_name, components)), note)
        return run

    return register


def qualified_name(component: Callable[..., Any]) -> str:
    """Return the import path of a component."""
    return f"{component.__module__}.{component.__qualname__}"


@functools.cache
def load_checks() -> Mapping[str, Check]:
    """Import all modules of this package and return their checks by name, sorted by module."""
    for module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"paper_properties.{module}")
    return dict(_CHECKS)
