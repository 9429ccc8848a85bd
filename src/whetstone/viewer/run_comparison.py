"""Results of `whetstone compare` for the viewer: its table and its conclusion, read at each request.

Note:
    JSON has no NaN; a p-value that cannot be computed from one seed is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whetstone.json_lines import UNREADABLE
from whetstone.reporting.comparison_page import summarize_verdict
from whetstone.viewer.run_files import RunFiles


def find_comparison(folders: Iterable[Path], *, follow_symlinks: bool = False) -> dict[str, Any] | None:
    """Find the first `comparison.json` in the folders, and add its conclusion as `sentence`.

    Returns:
        The comparison; None if no folder has one yet.
    """
    for folder in folders:
        if comparison := RunFiles(folder, follow_symlinks).read_object(folder / "comparison.json"):
            return {"contenders": [], "pairs": [], **comparison, "sentence": _conclude(comparison)}
    return None


def _conclude(comparison: dict[str, Any]) -> str:
    try:
        unknown = [{**pair, "p_seeds": math.nan} if pair["p_seeds"] is None else pair for pair in comparison["pairs"]]
        return summarize_verdict({**comparison, "pairs": unknown})
    except UNREADABLE:  # a file of another version
        return ""
