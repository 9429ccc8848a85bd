"""Why is a stage over? Its steps are made, its budget is spent, it is good enough, or it gets no better.

Everything is read from the steps on record, so a run that was killed and goes on ends where it would have.

Easy to get wrong: one lucky step is no success, and one bad step no plateau. So means over several steps are compared,
and a plateau is told by the best of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from whetstone.recipe import OptimizerSettings, ReinforcementSettings, UntilSettings
from whetstone.recipe.settings import SAMPLES
from whetstone.training.budget import share_spent, unit_spent

STEPS = "steps"
"""What a stage is said to have ended by that made all of its steps."""
_SUCCESS = "episode/success"
_MEASURED = {"reward": "reward/mean", "loss": "loss/total"}


def end_of(
    rows: Sequence[Mapping[str, Any]], stage: str, settings: OptimizerSettings, *, done: int | None = None
) -> str | None:
    """What a stage is over by, in a line; None: it is not.

    Args:
        rows: Of `metrics.jsonl`.
        done: Steps made; None: as many as there are rows of the stage.
    """
    mine = [row for row in rows if row["stage"] == stage]
    if settings.until is not None:
        reached = reached_in(mine, settings.until, measure="reward" if stage in SAMPLES else "loss")
        if reached is not None:
            return reached
    budget = settings.budget if isinstance(settings, ReinforcementSettings) else None
    if budget is not None and share_spent(mine, budget, stage) >= 1:
        return f"budget: {unit_spent(mine, budget, stage)}"
    return STEPS if (len(mine) if done is None else done) >= settings.steps else None


def reached_in(rows: Sequence[Mapping[str, Any]], until: UntilSettings, *, measure: str) -> str | None:
    """What of `until` these steps have reached, in a line; None: nothing.

        m_t = mean of the last `window` values at step t
        success:   m_t ≥ success
        plateau:   max m over the last `plateau` steps < max m before them + min_delta      (of a loss: −m)

    Steps that measured nothing (no episode could be scored) do not count.

    Args:
        rows: Of one stage.
        measure: What a plateau is of where `until` does not say: `reward` or `loss`.
    """
    if until.success is not None:
        means = _moving(_values(rows, _SUCCESS), until.window)
        if means and means[-1] >= until.success:
            return f"success: {means[-1]:.3f} in the mean of {until.window} steps"
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
    """The mean of each `window` values in a row."""
    return [fmean(values[end - window : end]) for end in range(window, len(values) + 1)]
