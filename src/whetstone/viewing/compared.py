"""What did `whetstone compare` say? Its table and its sentence, read anew whenever they are asked for.

Easy to get wrong: JSON has no NaN, so what one seed cannot tell is null there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whetstone.json_lines import UNREADABLE
from whetstone.reporting.comparison import verdict_of
from whetstone.viewing.run_files import RunFiles


def comparison_in(folders: Iterable[Path], *, follow_symlinks: bool = False) -> dict[str, Any] | None:
    """Return the first comparison of these folders with its `sentence`, or None if there is none yet."""
    for folder in folders:
        if told := RunFiles(folder, follow_symlinks).read_object(folder / "comparison.json"):
            return {"contenders": [], "pairs": [], **told, "sentence": _sentence(told)}
    return None


def _sentence(told: dict[str, Any]) -> str:
    try:
        unknown = [{**pair, "p_seeds": math.nan} if pair["p_seeds"] is None else pair for pair in told["pairs"]]
        return verdict_of({**told, "pairs": unknown})
    except UNREADABLE:  # of another version
        return ""
