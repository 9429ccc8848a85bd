"""Measures of a run: success, its learning curve, and any metric that it logged.

Note:
    Success during sampling depends on the tasks and initial states that a method selects. Methods with a selection are
    compared by evaluations during training (`evaluation.interval_steps`), which `area` and `tokens_to` read if a run
    has any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from whetstone.analysis.comparison import learning_curve, stage_cost
from whetstone.atomic_write import write_text
from whetstone.errors import RecipeError, did_you_mean
from whetstone.evaluation.stage_results import last_evaluation
from whetstone.record import read_json
from whetstone.renames import renamed_metric
from whetstone.reporting import Journal, Progress
from whetstone.reporting.charts import running_mean
from whetstone.training.agent_evaluation import evaluate

_PLAIN = ("success", "area")
_KINDS = (*_PLAIN, "tokens_to", "pass_at", "evaluation", "metric")
_PASS_TASKS = 60
"""Held-out tasks of an evaluation for pass@k, each with k episodes."""
_SAMPLES = (2, 4, 8, 16, 32, 64)
_OVER: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "last": lambda values: values[-1],
    "max": max,
    "min": min,
    "deviation": pstdev,
    "variation": lambda values: pstdev(values) / fmean(values) if any(values) else math.nan,
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a finished run."""

    kind: str
    """`success`, `area`, `tokens_to`, `pass_at`, `evaluation` or `metric`."""
    key: str = ""
    """Key of the last evaluation, dotted for a nested one (`parts.correct`), or of `metrics.jsonl`."""
    target: float = 0.0
    """Fraction of successes, for `tokens_to`; k, for `pass_at`."""
    over: str = "mean"
    """Aggregation over the reinforcement steps, for `metric`: `mean`, `max`, `min`, `deviation`, `last` or `variation`
    (deviation divided by mean, which does not depend on the scale of the loss)."""
    lower_is_better: bool = False

    @property
    def label(self) -> str:
        """Return the column heading in a table."""
        if self.kind == "tokens_to":
            return f"sampled tokens to {self.target:.0%}"
        if self.kind == "pass_at":
            return f"pass@{self.target:.0f}"
        if self.kind == "metric":
            return f"{self.key} ({self.over})"
        return {"success": "success", "area": "area under the curve"}.get(self.kind, self.key)

    def of(self, folder: Path, summary: Mapping[str, Any]) -> float:
        """Return the value for a run; NaN if the run has none.

        - `success`, `evaluation`: value of the last evaluation.
        - `area`: area under the learning curve over sampled tokens, divided by their number, so that it is a fraction.
        - `tokens_to`: sampled tokens until the curve, smoothed over five steps, reaches the target; all sampled tokens
          if it never does.
        - `pass_at`: fraction of held-out tasks that at least one of k episodes at temperature 1 solves. The episodes
          use the final weights, and the result is stored in the run's folder.
        - `metric`: aggregate over the reinforcement steps.
        """
        if self.kind == "success":
            return float(last_evaluation(summary)["success"])
        if self.kind == "evaluation":
            entry: Any = last_evaluation(summary)
            for name in self.key.split("."):
                entry = entry.get(name) if isinstance(entry, Mapping) else None
            return _number(entry)
        if self.kind == "pass_at":
            return _pass_at(folder, int(self.target))
        if self.kind == "metric":
            rows = [row for row in Journal(folder).read() if row["stage"] == "reinforcement"]
            values = [value for row in rows if not math.isnan(value := _number(row.get(self.key)))]
            return _OVER[self.over](values) if values else math.nan
        x, y = learning_curve(folder, "sampled_tokens")
        if self.kind == "area":
            return area_under(x, y)
        return first_reached(x, running_mean(y, 5), self.target, stage_cost(folder)["sampled_tokens"])


def _pass_at(folder: Path, k: int) -> float:
    """Return pass@k of the final weights of a run."""
    path = folder / f"pass-at-{k}.json"
    stored = read_json(path)
    if stored is None:
        evaluation = evaluate(folder, episodes=_PASS_TASKS, samples=k, temperature=1.0, progress=Progress(quiet=True))
        stored = {"tasks": _PASS_TASKS, "pass_at": evaluation.pass_at}
        write_text(path, json.dumps(stored))
    return _number(stored["pass_at"].get(str(k)))


def area_under(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the mean height of a curve over its width.

    >>> area_under([0, 10, 20], [0.0, 1.0, 1.0])
    0.75
    """
    if not x:
        return math.nan
    if x[-1] == x[0]:
        return float(y[-1])
    return float(np.trapezoid(y, x)) / (x[-1] - x[0])


def first_reached(x: Sequence[float], y: Sequence[float], target: float, most: float) -> float:
    """Return the first x at which a curve reaches `target`; `most` if it never does.

    >>> first_reached([10, 20, 30], [0.1, 0.6, 0.4], 0.5, 40), first_reached([10], [0.1], 0.5, 40)
    (20.0, 40.0)
    """
    return float(next((position for position, height in zip(x, y, strict=True) if height >= target), most))


def measure_from(specification: str | Mapping[str, Any]) -> Measure:
    """Parse a measure of a bench file.

    Forms: `success`, `area`, `{tokens_to: 0.5}`, `{pass_at: 8}`, `{evaluation: tool_calls, better: lower}`,
    `{metric: update/grad_norm, over: max, better: lower}`.

    Raises:
        RecipeError: The measure has another form.
    """
    options: dict[str, Any] = {specification: None} if isinstance(specification, str) else dict(specification)
    better, over = options.pop("better", None), str(options.pop("over", None) or "mean")
    if len(options) != 1:
        raise RecipeError(f"measure: {specification}: one of {', '.join(_KINDS)}")
    ((kind, value),) = options.items()
    if kind not in _KINDS or (kind in _PLAIN) != (value is None):
        raise RecipeError(f"measure: {specification}: one of {', '.join(_KINDS)}{did_you_mean(str(kind), _KINDS)}")
    if over not in _OVER:
        raise RecipeError(f"measure: over: {over}: one of {', '.join(_OVER)}")
    if better not in (None, "lower", "higher"):
        raise RecipeError(f"measure: better: {better}: lower or higher")
    if kind == "metric" and (renamed := renamed_metric(str(value))) is not None:
        raise RecipeError(f"measure: metric: {value}: renamed to {renamed}")
    if kind == "tokens_to":
        if not isinstance(value, int | float) or not 0 < value <= 1:
            raise RecipeError(f"measure: tokens_to: {value}: a fraction of successes, such as 0.5")
        return Measure("tokens_to", target=float(value), lower_is_better=True)
    if kind == "pass_at":
        if value not in _SAMPLES:
            raise RecipeError(f"measure: pass_at: {value}: one of {', '.join(map(str, _SAMPLES))}")
        return Measure("pass_at", target=float(value))
    return Measure(kind, key=str(value or ""), over=over, lower_is_better=better == "lower")


def upgrade_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored result with the metric names of this release, in the measures of its runs and of its claims."""
    contenders = [{**each, "runs": [_upgrade_run(run) for run in each["runs"]]} for each in result["contenders"]]
    claims = [
        {
            **claim,
            "measure": _upgrade_measure(claim["measure"]),
            "parts": [{**part, "measure": _upgrade_label(part["measure"])} for part in claim["parts"]],
        }
        for claim in result["claims"]
    ]
    return {**result, "contenders": contenders, "claims": claims}


def _upgrade_run(run: Mapping[str, Any]) -> dict[str, Any]:
    if "measures" not in run:
        return dict(run)
    return {**run, "measures": {_upgrade_label(label): value for label, value in run["measures"].items()}}


def _upgrade_measure(written: Any) -> Any:
    if isinstance(written, list):
        return [_upgrade_measure(each) for each in written]
    if isinstance(written, Mapping) and "metric" in written:
        return {**written, "metric": renamed_metric(str(written["metric"])) or written["metric"]}
    return written


def _upgrade_label(label: str) -> str:
    name, space, over = label.partition(" ")  # as `Measure.label` writes it: `update/grad_norm (max)`
    return f"{renamed_metric(name) or name}{space}{over}" if "/" in name else label


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
