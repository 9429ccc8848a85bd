"""Piecewise constant schedules over steps: a value from each listed step on, until the next.

Note:
    The value is a function of the step only, so that a resumed run has the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.plugins import OptionError

Stages = Sequence[tuple[int, float]]
"""(first step, value) of each stage."""


def check_stages_cover(key: str, stages: Stages) -> Stages:
    """Return the stages if every step has a value.

    Raises:
        OptionError: If the first steps have no value, or the stages are not in ascending order.
    """
    starts = [start for start, _ in stages]
    if not starts or starts[0] != 0:
        problem = f"the first stage starts at {starts[0]}" if starts else "has no stages"
        raise OptionError(key, f"{problem}; the first one must start at 0")
    if starts != sorted(set(starts)):
        raise OptionError(key, f"starts of stages must ascend, got {starts}")
    return stages


def value_at_step(step: int, stages: Stages) -> float:
    """Return the value at a step, from 0."""
    return next(value for start, value in reversed(stages) if start <= step)
