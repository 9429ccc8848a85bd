"""What changes at certain steps? A value from each step on, until the next.

Easy to get wrong: it is a function of the step alone, so that a resumed run has what it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.plugins import OptionError

Stages = Sequence[tuple[int, float]]
"""(from this step on, value)"""


def checked(key: str, stages: Stages) -> Stages:
    """The stages, if every step has a value.

    Raises:
        OptionError: There is a gap: none for the first steps, or an order that is not one.
    """
    starts = [start for start, _ in stages]
    if not starts or starts[0] != 0:
        begins = f"begin at {starts[0]}" if starts else "are none"
        raise OptionError(key, f"stages {begins}, so the steps before have no value; the first begins at 0")
    if starts != sorted(set(starts)):
        raise OptionError(key, f"stages begin one after the other, got {starts}")
    return stages


def at(step: int, stages: Stages) -> float:
    """The value at a step, from 0."""
    return next(value for start, value in reversed(stages) if start <= step)
