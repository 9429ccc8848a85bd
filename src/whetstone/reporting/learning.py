"""Why did a step learn, or not? What became of its trajectories and tokens, one row a step.

Easy to get wrong: shares are of different things. Groups without a difference are of groups, filters of trajectories,
all others of the tokens that were trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps something from being learned from."""

    key: str
    """Of the metrics."""
    name: str
    said: str
    """What it means."""


REASONS = (
    Reason("episode/invalid_fraction", "failed", "of episodes: they have no score"),
    Reason("group/zero_variance_fraction", "all equal", "of groups: all earned the same, nothing to compare"),
    Reason("advantage/zero_fraction", "no credit", "of tokens: their advantage is exactly 0"),
    Reason("policy/clip_fraction", "clipped", "of tokens: moved as far as one update may move them"),
    Reason("policy/dual_clip_fraction", "dual-clipped", "of tokens: bad ones that became far likelier"),
    Reason("importance/truncated_fraction", "reweighed", "of tokens: importance weight truncated or masked"),
    Reason("policy/staleness_mean", "age", "updates since the tokens were drawn, in the mean"),
    Reason("update/observation_fraction", "unmasked", "of tokens: written by tools, and trained all the same"),
    Reason("update/skipped_fraction", "idle", "of updates: the gradient was 0 or not finite"),
)


_MEASUREMENTS = 5
"""Minimum number of measurements of the noise scale for an advice."""
_FAR = 2.0
"""Ratio of noise scale and batch from which the batch is called too small: a third of a step is signal there."""
_NOT_LOST = ("from", "to", "success", "age", "unmasked", "idle")


def learning_rows(rows: Sequence[Mapping[str, Any]], *, windows: int | None = None) -> list[dict[str, Any]]:
    """A row for each step of reinforcement, or for each of so many equal windows of them, by the names of reasons.
    None stands for a mean of nothing.

    Args:
        rows: Of `metrics.jsonl`.
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
    found: list[dict[str, Any]] = []
    for k in range(count):
        held = steps[k * len(steps) // count : (k + 1) * len(steps) // count]
        row: dict[str, Any] = {"from": held[0]["step"], "to": held[-1]["step"]}
        for name, key in (("success", "episode/success"), *((reason.name, reason.key) for reason in reasons)):
            if any(step.get(key) for step in steps) or (any(key in step for step in steps) and name != "failed"):
                row[name] = _mean(held, key)
        found.append(row)
    return found


def learned_from(row: Mapping[str, Any]) -> str:
    """What a row learned from, or what stood most in its way, in words."""
    row = {name: value for name, value in row.items() if value is not None}
    if row.get("failed", 0) == 1:
        return "nothing: every episode failed"
    if row.get("idle", 0) >= 0.5:
        why = "all groups equal" if row.get("all equal", 0) == 1 else "no credit"
        return f"nothing: {why}"
    shares = {name: value for name, value in row.items() if name not in _NOT_LOST}
    causes = {name: value for name, value in shares.items() if value >= 0.05}
    if causes.keys() - {"no credit"}:  # which is what the others come to
        causes.pop("no credit", None)
    return f"most lost: {max(causes, key=lambda name: causes[name])}" if causes else "nearly everything"


def noise_advice(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a line of advice if the batch is certainly far smaller than the gradient noise scale; None otherwise.

    Args:
        rows: Of `metrics.jsonl`. Fewer than `_MEASUREMENTS` measurements give no advice.
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
    """Return one line on the checkpoint that `reinforcement.keep: best` kept, and the score of the last one.

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
