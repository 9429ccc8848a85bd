"""Reads the last trajectories of a run as plain rows, for statistics that need no `Trajectory` objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whetstone.json_lines import read_objects
from whetstone.trajectory_json import check_row

_MAX_EPISODES = 5_000


def stored_lines(run_dir: Path, *, most: int = _MAX_EPISODES) -> list[dict[str, Any]]:
    """Return the last trajectories of a run as JSON objects; at most `most`.

    The incomplete last line of an interrupted run is ignored.

    Raises:
        RunDirectoryError: A line is damaged; the message names file and line.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted((run_dir / "trajectories").glob("step-*.jsonl"), reverse=True):
        rows += read_objects(path, check_row)
        if len(rows) >= most:
            break
    return rows[-most:]
