"""Forgetting and transfer of learners over a sequence of tasks."""

from __future__ import annotations

from collections.abc import Callable

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.evaluation.continual_learning import compute_transfer, summarize_transfer

_FACTS = {"one": range(0, 8), "two": range(4, 12), "three": range(12, 20)}
"""Facts that solve the tasks of each suite; `two` shares half of its facts with `one`."""
_Learner = Callable[[set[int], range], set[int]]
"""Component that returns the facts after a stage, from those before it and those of the stage."""


@exact(
    "system-design-integrated-lifelong-reinforcement-learning",
    of=(compute_transfer, summarize_transfer),
    note="by analogy: learners of facts in place of agents in a strategy game",
)
def forgetting_and_transfer_tell_interchangeable_learners_apart() -> list[Figure]:
    """Over a sequence of three tasks, of which the second shares half of its facts with the first, a learner that
    keeps all facts has no forgetting, one that replaces them forgets all others, and both have the forward
    transfer of the shared facts."""
    keeps = _measure(lambda known, new: known | set(new))
    replaces = _measure(lambda known, new: set(new))
    return [
        Figure("mean success at the end, keeping", "=", 1, keeps["mean_success"]),
        Figure("backward transfer, keeping", "=", 0, keeps["backward_transfer"]),
        Figure("forward transfer, keeping: (1/2 + 0) / 2", "=", 0.25, keeps["forward_transfer"]),
        Figure("mean success at the end, replacing", "=", 1 / 3, replaces["mean_success"]),
        Figure("backward transfer, replacing: (-1 - 1) / 2", "=", -1, replaces["backward_transfer"]),
        Figure("forward transfer, replacing: (1/2 + 0) / 2", "=", 0.25, replaces["forward_transfer"]),
        Figure("forgetting, replacing: (1 + 1) / 2", "=", 1, replaces["forgetting"]),
    ]


def _measure(learner: _Learner) -> dict[str, float]:
    known: set[int] = set()
    success: dict[str, dict[str, float]] = {suite: {"untrained": 0.0} for suite in _FACTS}
    for stage, facts in _FACTS.items():
        known = learner(known, facts)
        for suite, needed in _FACTS.items():
            success[suite][stage] = len(known & set(needed)) / len(needed)
    return summarize_transfer({suite: compute_transfer(rates, suite) for suite, rates in success.items()})
