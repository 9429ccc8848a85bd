"""What did the last episodes of a run come to, where their lines as stored are enough?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

_MOST_EPISODES = 5_000


def stored_lines(run_dir: Path, *, most: int = _MOST_EPISODES) -> list[dict[str, Any]]:
    """The last trajectories of a run, as they are stored; a torn line is left out."""
    found: list[dict[str, Any]] = []
    for path in sorted((run_dir / "trajectories").glob("step-*.jsonl"), reverse=True):
        with open(path, "rb") as file:
            for text in file:
                try:
                    line = orjson.loads(text)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    found.append(line)
        if len(found) >= most:
            break
    return found[-most:]
