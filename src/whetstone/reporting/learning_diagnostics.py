"""Learning diagnostics: why a step did (not) learn, with one row per step.

Note:
    Fractions have different denominators: groups without reward variance are counted in groups, filters in
    trajectories, and all others in trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why sampled data does not contribute to an update, with the metric that measures it."""

    key: str
    """Name of the metric."""
    name: str
    """Short name of the reason in tables."""
    meaning: str
    """Meaning of the metric."""


REASONS = (
    Reason("episode/invalid_fraction", "failed", "fraction of episodes without a score"),
    Reason(
        "group/zero_variance_fraction", "all equal", "fraction of groups with equal rewards, which give no advantage"
    ),
    Reason("advantage/zero_fraction", "no credit", "fraction of tokens with an advantage of exactly 0"),
    Reason("policy/clip_fraction", "clipped", "fraction of tokens with a clipped ratio"),
    Reason(
        "policy/dual_clip_fraction",
        "dual-clipped",
        "fraction of tokens with a negative advantage and a ratio above the dual clip",
    ),
    Reason(
        "importance/truncated_fraction", "reweighed", "fraction of tokens with a truncated or masked importance weight"
    ),
    Reason("policy/staleness_mean", "age", "mean number of updates since the tokens were sampled"),
    Reason("update/observation_fraction", "unmasked", "fraction of trained tokens that tools wrote"),
    Reason("update/skipped_fraction", "idle", "fraction of updates with a gradient of 0 or not finite"),
)


_MEASUREMENTS = 5
"""Minimum number of measurements of the noise scale for an advice."""
_FAR = 2.0
"""Ratio of noise scale to batch size above which the batch is called too small: a third of such a step is signal."""
_NOT_LOST = ("from", "to", "success", "age", "unmasked", "idle")


def learning_rows(rows: Sequence[Mapping[str, Any]], *, windows: int | None = None) -> list[dict[str, Any]]:
    """Summarize why data was lost: one row per step of reinforcement, or per window of steps.

    Each row has a value per reason; the value is None if no step of the window has the metric.

    Args:
        rows: Rows of `metrics.jsonl`.
        windows: Number of equal windows; None: one row per step.
    """
    steps = [row for row in rows if row["stage"] == "reinforcement"]
    filters = sorted({key for row in steps for key in row if key.startswith("credit_filters/")})
    reasons = [
        *REASONS[:2],
        *(
            Reason(key, f"out by {key.removeprefix('credit_filters/').removesuffix('_removed_fraction')}", "")
            for key in filters
        ),
        *REASONS[2:],
    ]
    count = len(steps) if windows is None else min(windows, len(steps))
    windows_rows: list[dict[str, Any]] = []
    for k in range(count):
        window = steps[k * len(steps) // count : (k + 1) * len(steps) // count]
        row: dict[str, Any] = {"from": window[0]["step"], "to": window[-1]["step"]}
        for name, key in (("success", "episode/success"), *((reason.name, reason.key) for reason in reasons)):
            if any(step.get(key) for step in steps) or (any(key in step for step in steps) and name != "failed"):
                row[name] = _mean(window, key)
        windows_rows.append(row)
    return windows_rows


def describe_learning(row: Mapping[str, Any]) -> str:
    """Describe a row of `learning_rows` in words: how much was trained on, or the main reason for lost data."""
    row = {name: value for name, value in row.items() if value is not None}
    if row.get("failed", 0) == 1:
        return "nothing: every episode failed"
    if row.get("idle", 0) >= 0.5:
        why = "all groups equal" if row.get("all equal", 0) == 1 else "no credit"
        return f"nothing: {why}"
    shares = {name: value for name, value in row.items() if name not in _NOT_LOST}
    causes = {name: value for name, value in shares.items() if value >= 0.05}
    if causes.keys() - {"no credit"}:  # the other reasons cause it
        causes.pop("no credit", None)
    return f"most lost: {max(causes, key=lambda name: causes[name])}" if causes else "nearly everything"


def noise_advice(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Advise a larger batch if the batch is certainly far smaller than the gradient noise scale; None otherwise.

    Args:
        rows: Rows of `metrics.jsonl`. Fewer than `_MEASUREMENTS` measurements give no advice.
    """
    steps = [row for row in rows if row["stage"] == "reinforcement"]
    measured = [row for row in steps if row.get("update/noise_scale_min") is not None]
    if len(measured) < _MEASUREMENTS:
        return None
    groups, least = measured[-1]["update/groups"], measured[-1]["update/noise_scale_min"]
    if least < _FAR * groups:
        return None
    return (
        f"the batch of {groups:.0f} groups is at least {least / groups:.0f} times smaller than the gradient noise "
        "scale (update/noise_scale_min); increase reinforcement.tasks_per_step or reduce reinforcement.learning_rate"
    )


def kept_sentence(selection: Mapping[str, Any]) -> str:
    """Describe the checkpoint that `reinforcement.keep: best` selected, and the score of the last checkpoint.

    Args:
        selection: Content of `kept.json`.
    """
    validation, last = selection["validation"], selection["last"]["success"]
    other = "scored no episode" if last is None else f"{last:.1%}"
    compared = "" if selection["step"] == selection["of"] else f", the last checkpoint {other}"
    return (
        f"reinforcement.keep: best kept step {selection['step']} of {selection['of']}: {validation['success']:.1%} of "
        f"{validation['episodes']} validation episodes succeed{compared}"
    )


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None
