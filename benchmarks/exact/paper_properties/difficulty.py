"""Difficulty of tasks before training."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.evaluation.difficulty import plan_greedily

_DEPTHS, _EXITS = (4, 5, 6), (0.0, 0.1, 0.2, 0.3, 0.6)
_MAX_UPDATES = 2000


def _solves(depth: int, exit_value: float, lookahead: int) -> bool:
    """Return whether greedy steps with exact values of the random policy take `depth` right turns.

    A left turn at the start ends with `exit_value`, a later one with 0; `depth` right turns end with 1.
    """

    async def actions(prefix: tuple[str, ...]) -> tuple[str, ...]:
        return () if "left" in prefix or len(prefix) == depth else ("left", "right")

    async def value(prefix: tuple[str, ...]) -> float:
        if prefix[0] == "left":
            return exit_value
        return 0.0 if "left" in prefix else 0.5 ** (depth - len(prefix))

    return len(asyncio.run(plan_greedily(actions, value, lookahead=lookahead))) == depth


def _count_updates(depth: int, exit_value: float) -> float:
    """Return the exact policy gradient updates from the uniform policy until `depth` right turns have probability 0.9.

    One logit per state, learning rate 1; infinite beyond 2,000 updates.
    """
    logits = [0.0] * depth
    for update in range(_MAX_UPDATES):
        right = [1 / (1 + math.exp(-logit)) for logit in logits]
        if math.prod(right) > 0.9:
            return update
        after = [math.prod(right[state + 1 :]) for state in range(depth)]  # value of a right turn in each state
        reach = [math.prod(right[:state]) for state in range(depth)]
        for state, p in enumerate(right):
            left = exit_value if state == 0 else 0.0
            logits[state] += reach[state] * p * (1 - p) * (after[state] - left)
    return math.inf


@exact(
    "effective-horizon-explains-deep-rl-performance",
    of=plan_greedily,
    note="by analogy: exact values instead of sampled ones; a tabular policy trained by its exact gradient",
)
def greedy_steps_order_tasks_by_updates() -> list[Figure]:
    """For chains of n turns with an exit of value c, the smallest lookahead whose greedy steps on the values of the
    random policy solve the task is the smallest k with 2^(k − n) > c, and the exact policy gradient needs more updates
    the larger k is, up to the limit of 2,000. The random policy solves all tasks of one length equally often."""
    wrong = rising = 0
    updates: dict[tuple[int, float], float] = {}
    for depth in _DEPTHS:
        horizons = []
        for exit_value in _EXITS:
            horizon = next(k for k in range(1, depth + 1) if _solves(depth, exit_value, k))
            wrong += horizon != next(k for k in range(1, depth + 1) if 2.0 ** (k - depth) > exit_value)
            updates[depth, exit_value] = _count_updates(depth, exit_value)
            horizons.append((horizon, updates[depth, exit_value]))
        for (shorter, sooner), (longer, later) in pairwise(horizons):
            rising += longer > shorter and later > sooner
    return [
        Figure("horizons other than the formula, of 15 tasks", "=", 0, wrong),
        Figure("neighboring tasks of one depth with a longer horizon that need more updates, of 11", "=", 10, rising),
        Figure("tasks of the eleventh pair, both not solved in 2,000 updates", "=", 2,
               sum(updates[6, value] == math.inf for value in (0.3, 0.6))),
        Figure("updates at depth 6, horizon 1", "=", 141, updates[6, 0.0]),
        Figure("updates at depth 6, horizon 4, bound: 3 times those of horizon 1", ">", 3 * 141, updates[6, 0.2]),
    ]  # fmt: skip
