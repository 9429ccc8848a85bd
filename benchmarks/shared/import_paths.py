"""Folders of the benchmarks, whose modules import each other by name."""

from __future__ import annotations

import os
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
FOLDERS = tuple(
    BENCHMARKS / name
    for name in ("shared", "speed", "exact", "robust", "scale", "learning", "evidence", "evidence/environments")
)


def python_path() -> str:
    """Return `PYTHONPATH` with all folders of the benchmarks first, for a process that imports one of their modules."""
    return os.pathsep.join([*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])])
