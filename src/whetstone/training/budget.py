"""What has a stage spent, and how much of what it may?

Easy to get wrong: a stage that ends by its budget never makes all of its `steps`. What is laid out over the stage (a
learning rate that rises and falls) is laid out over the budget then, or all of it lies in the beginning.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.recipe.stage_settings import BudgetSettings

UNITS = ("episodes", "sampled_tokens", "tool_calls", "seconds", "hours", "dollars")


def spent_in(rows: Sequence[Mapping[str, Any]], stage: str = "reinforcement") -> dict[str, float]:
    """What a stage has spent so far, by `BudgetSettings`' units.

    Args:
        rows: Of `metrics.jsonl`.
    """
    mine = [row for row in rows if row["stage"] == stage]
    found = {unit: sum(row.get(f"cost_per_step/{unit}") or 0.0 for row in mine) for unit in UNITS[:3]}
    found["seconds"] = sum((row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in mine)
    found["hours"] = found["seconds"] / 3600
    found["dollars"] = _total([row.get("judge/cost") or 0.0 for row in mine])
    return found


def _total(counts: Sequence[float]) -> float:
    """Return the total of a counter that starts at 0 again with each process of a run."""
    increments = (now - before if now >= before else now for before, now in itertools.pairwise([0.0, *counts]))
    return sum(increments)


def share_spent(
    rows: Sequence[Mapping[str, Any]], budget: BudgetSettings | None, stage: str = "reinforcement"
) -> float:
    """How much of its budget a stage has used up, of the unit it has least left of; 1 or more: it is over. 0 without a
    budget.

    Args:
        rows: Of `metrics.jsonl`.
    """
    return max(_shares(rows, budget, stage).values(), default=0.0) if budget is not None else 0.0


def unit_spent(rows: Sequence[Mapping[str, Any]], budget: BudgetSettings, stage: str = "reinforcement") -> str:
    """The unit of its budget a stage has least left of."""
    shares = _shares(rows, budget, stage)
    return max(shares, key=lambda unit: shares[unit])


def _shares(rows: Sequence[Mapping[str, Any]], budget: BudgetSettings, stage: str) -> dict[str, float]:
    spent = spent_in(rows, stage)
    return {unit: spent[unit] / most for unit, most in budget.limits.items()}
