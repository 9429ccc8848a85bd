"""Stopping criteria of a stage: all steps made, budget spent, success reached, or a plateau (early stopping).

All values are read from the recorded steps, so a resumed run stops at the same step as an uninterrupted one.

Note:
    One lucky step is no success, and one bad step no plateau. Means over several steps are compared, and a plateau is
    detected by the best of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from whetstone.recipe import OptimizerSettings, ReinforcementSettings, UntilSettings
from whetstone.recipe.settings import SAMPLES
from whetstone.training.budget import budget_fraction_spent, most_spent_unit

STEPS = "steps"
"""Stopping reason of a stage that has made all of its steps."""
_SUCCESS = "episode/success"
_MEASURED = {"reward": "reward/mean", "loss": "loss/total"}


def stopping_reason(
    rows: Sequence[Mapping[str, Any]], stage: str, settings: OptimizerSettings, *, done: int | None = None
) -> str | None:
    """Return the stopping reason of a stage in one line, or None while it continues.

    Args:
        rows: Rows of `metrics.jsonl`.
        stage: Name of the stage.
        settings: Settings of the stage: steps, budget and `until`.
        done: Number of steps made; None: the number of rows of the stage.
    """
    stage_rows = [row for row in rows if row["stage"] == stage]
    if settings.until is not None:
        reached = reached_condition(stage_rows, settings.until, measure="reward" if stage in SAMPLES else "loss")
        if reached is not None:
            return reached
    budget = settings.budget if isinstance(settings, ReinforcementSettings) else None
    if budget is not None and budget_fraction_spent(stage_rows, budget, stage) >= 1:
        return f"budget: {most_spent_unit(stage_rows, budget, stage)}"
    return STEPS if (len(stage_rows) if done is None else done) >= settings.steps else None


def reached_condition(rows: Sequence[Mapping[str, Any]], until: UntilSettings, *, measure: str) -> str | None:
    """Return which condition of `until` is reached, in one line, or None.

        m_t = mean of the last `window` values at step t
        success:   m_t ≥ success
        plateau:   max m over the last `plateau` steps < max m before them + min_delta      (of a loss: −m)

    Steps without a value (no episode could be scored) do not count.

    Args:
        rows: Rows of one stage.
        until: Conditions.
        measure: Value monitored for a plateau if `until` does not set it: `reward` or `loss`.
    """
    if until.success is not None:
        means = _moving(_values(rows, _SUCCESS), until.window)
        if means and means[-1] >= until.success:
            return f"success: {means[-1]:.3f} mean of {until.window} steps"
    if until.plateau is not None:
        measure = until.monitor or measure
        sign = -1 if measure == "loss" else 1
        means = [sign * mean for mean in _moving(_values(rows, _MEASURED[measure]), until.window)]
        before, since = means[: -until.plateau], means[-until.plateau :]
        if before and max(since) < max(before) + until.min_delta:
            best, change = f"{measure} {sign * max(before):.4g}", f"{until.min_delta:g}"
            return f"plateau: {best}, no better by {change} in {until.plateau} steps"
    return None


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _moving(values: Sequence[float], window: int) -> list[float]:
    """Return the moving average over `window` values."""
    return [fmean(values[end - window : end]) for end in range(window, len(values) + 1)]
