"""Budget of a stage: spent episodes, tokens, calls, time and money, and the fraction that is used.

Note:
    A stage that ends by its budget never makes all of its `steps`. Schedules over the stage, such as a learning rate
    with warm-up and decay, then follow the budget, or only their start would be used.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.recipe.stage_settings import BudgetSettings

UNITS = ("episodes", "sampled_tokens", "tool_calls", "seconds", "hours", "dollars")
"""Units of a budget, the keys of `BudgetSettings`."""


def compute_spending(rows: Sequence[Mapping[str, Any]], stage: str = "reinforcement") -> dict[str, float]:
    """Return the amounts that a stage has spent so far, by unit of `BudgetSettings`.

    Args:
        rows: Rows of `metrics.jsonl`.
        stage: Name of the stage.
    """
    stage_rows = [row for row in rows if row["stage"] == stage]
    spent = {unit: sum(row.get(f"cost_per_step/{unit}") or 0.0 for row in stage_rows) for unit in UNITS[:3]}
    spent["seconds"] = sum((row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in stage_rows)
    spent["hours"] = spent["seconds"] / 3600
    spent["dollars"] = _total([row.get("judge/cost") or 0.0 for row in stage_rows])
    return spent


def _total(counts: Sequence[float]) -> float:
    """Return the total of a counter that starts at 0 again with each process of a run."""
    increments = (now - before if now >= before else now for before, now in itertools.pairwise([0.0, *counts]))
    return sum(increments)


def budget_fraction_spent(
    rows: Sequence[Mapping[str, Any]], budget: BudgetSettings | None, stage: str = "reinforcement"
) -> float:
    """Return the used fraction of a stage's budget; at 1 or more the stage ends.

    With limits in several units, the highest fraction counts. Without a budget, the fraction is 0.

    Args:
        rows: Rows of `metrics.jsonl`.
        budget: Limits of the stage; None: no budget.
        stage: Name of the stage.
    """
    return max(_shares(rows, budget, stage).values(), default=0.0) if budget is not None else 0.0


def most_spent_unit(rows: Sequence[Mapping[str, Any]], budget: BudgetSettings, stage: str = "reinforcement") -> str:
    """Return the unit of a budget with the highest used fraction, which ends the stage.

    Args:
        rows: Rows of `metrics.jsonl`.
        budget: Limits of the stage.
        stage: Name of the stage.
    """
    shares = _shares(rows, budget, stage)
    return max(shares, key=lambda unit: shares[unit])


def _shares(rows: Sequence[Mapping[str, Any]], budget: BudgetSettings, stage: str) -> dict[str, float]:
    spent = compute_spending(rows, stage)
    return {unit: spent[unit] / limit for unit, limit in budget.limits.items()}
