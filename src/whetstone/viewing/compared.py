"""What did `whetstone compare` say? Its table and its sentence, read anew whenever they are asked for.

Easy to get wrong: JSON has no NaN, so what one seed cannot tell is null there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whetstone.reporting.comparison import verdict_of
from whetstone.viewing.opened import json_object


def comparison_in(folders: Iterable[Path]) -> dict[str, Any] | None:
    """The first comparison of these folders with its `sentence`; None where there is none, yet."""
    for folder in folders:
        if told := json_object(folder / "comparison.json"):
            return {"contenders": [], "pairs": [], **told, "sentence": _sentence(told)}
    return None


def _sentence(told: dict[str, Any]) -> str:
    try:
        unknown = [{**pair, "p_seeds": math.nan} if pair["p_seeds"] is None else pair for pair in told["pairs"]]
        return verdict_of({**told, "pairs": unknown})
    except (LookupError, TypeError, ValueError):  # of another version
        return ""
