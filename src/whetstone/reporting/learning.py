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
    Reason("group/zero_variance_fraction", "all equal", "of groups: all earned the same, nothing to compare"),
    Reason("credit/zero_fraction", "no credit", "of tokens: their advantage is exactly 0"),
    Reason("policy/clip_fraction", "clipped", "of tokens: moved as far as one update may move them"),
    Reason("policy/dual_clip_fraction", "dual-clipped", "of tokens: bad ones that became far likelier"),
    Reason("correction/changed_fraction", "reweighed", "of tokens: drawn by a policy too far away to count whole"),
    Reason("policy/staleness_mean", "age", "updates since the tokens were drawn, in the mean"),
    Reason("update/skipped", "idle", "of updates: the gradient was 0, or not finite"),
)


def learning_rows(rows: Sequence[Mapping[str, Any]], *, windows: int | None = None) -> list[dict[str, float | int]]:
    """A row for each step of reinforcement, or for each of so many equal windows of them, by the names of reasons.

    Args:
        rows: Of `metrics.jsonl`.
    """
    steps = [row for row in rows if row["stage"] == "reinforcement"]
    filters = sorted({key for row in steps for key in row if key.startswith("filter/")})
    reasons = [
        *REASONS[:1],
        *(Reason(key, f"out by {key.removeprefix('filter/')}", "") for key in filters),
        *REASONS[1:],
    ]
    count = len(steps) if windows is None else min(windows, len(steps))
    found: list[dict[str, float | int]] = []
    for k in range(count):
        held = steps[k * len(steps) // count : (k + 1) * len(steps) // count]
        row: dict[str, float | int] = {"from": held[0]["step"], "to": held[-1]["step"]}
        row["success"] = _mean(held, "episode/success")
        for reason in reasons:
            if any(reason.key in step for step in steps):
                row[reason.name] = _mean(held, reason.key)
        found.append(row)
    return found


def learned_from(row: Mapping[str, float | int]) -> str:
    """What a row learned from, or what stood most in its way, in words."""
    if row.get("idle", 0) >= 0.5:
        why = "all groups equal" if row.get("all equal", 0) == 1 else "no credit"
        return f"nothing: {why}"
    shares = {name: value for name, value in row.items() if name not in ("from", "to", "success", "age", "idle")}
    causes = {name: value for name, value in shares.items() if value >= 0.05}
    if causes.keys() - {"no credit"}:  # which is what the others come to
        causes.pop("no credit", None)
    return f"most lost: {max(causes, key=lambda name: causes[name])}" if causes else "nearly everything"


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else 0.0
