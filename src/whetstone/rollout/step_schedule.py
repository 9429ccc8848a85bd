"""Piecewise constant schedules over steps: a value from each listed step on, until the next.

Note:
    The value is a function of the step only, so that a resumed run has the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.plugins import OptionError

Stages = Sequence[tuple[int, float]]
"""Stages of a schedule: pairs (first step, value) with ascending steps; the first step is 0."""


def check_stages_cover(key: str, stages: Stages) -> Stages:
    """Check that a schedule has a value at every step, and return it.

    Args:
        key: Recipe option that defines the schedule, for the message.
        stages: Pairs (first step, value).

    Raises:
        OptionError: If there are no stages, the first one does not start at step 0, or the steps do not ascend.
    """
    starts = [start for start, _ in stages]
    if not starts or starts[0] != 0:
        problem = f"the first stage starts at {starts[0]}" if starts else "has no stages"
        raise OptionError(key, f"{problem}; the first one must start at 0")
    if starts != sorted(set(starts)):
        raise OptionError(key, f"starts of stages must ascend, got {starts}")
    return stages


def value_at_step(step: int, stages: Stages) -> float:
    """Return the value of the schedule at a step, counted from 0."""
    return next(value for start, value in reversed(stages) if start <= step)
