"""Reads the outcome of tasks from files of recorded episodes (`trajectories/*.jsonl`)."""

from __future__ import annotations

import json
from pathlib import Path


def successes_by_task(path: Path) -> dict[str, list[float]]:
    """Return the success (0 or 1) of each episode with a score, by task."""
    results: dict[str, list[float]] = {}
    for line in path.open():
        row = json.loads(line)
        if row["score"] is not None:
            results.setdefault(row["task_id"], []).append(float(bool(row["score"]["success"])))
    return results
