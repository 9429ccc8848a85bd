"""Names of the effect of a method against a baseline, and the rule that combines several of them."""

from __future__ import annotations

from collections.abc import Iterable

BETTER, WORSE = "better", "worse"
NO_DIFFERENCE = "no difference of 5 points"
CANNOT_TELL = "cannot tell"
NOT_TESTABLE = "not testable here"
NOT_RUN = "not run"
EFFECTS = (BETTER, NO_DIFFERENCE, CANNOT_TELL, NOT_TESTABLE, WORSE)
"""All effects of comparisons that were run, the strongest support of a claim first."""


def find_weakest_effect(effects: Iterable[str]) -> str:
    """Return the effect that supports a claim least; `not run` if there is none.

    >>> find_weakest_effect([BETTER, CANNOT_TELL]), find_weakest_effect([BETTER, WORSE]), find_weakest_effect([])
    ('cannot tell', 'worse', 'not run')
    """
    return max(effects, key=EFFECTS.index, default=NOT_RUN)
