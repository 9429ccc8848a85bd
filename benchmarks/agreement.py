"""How do our verdicts agree with a benchmark's own? A page and a file of the answers that were judged by both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances

_COLUMNS = ("tasks", "gold: agreed", "gold: right", "mutated", "agreed", "right")


def page(
    found: Sequence[Mapping[str, Any]],
    *,
    kind: str,
    opening: Sequence[str],
    told: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    more: Mapping[str, str] | None = None,
) -> str:
    """The figures of each kind as a table, and every difference.

    Args:
        found: A mapping each, with `gold_agreed` and the like.
        kind: What each is of: the name of the first column, and the key it stands under.
        opening: The lines in front of the table.
        told: (what it is found in, a difference) → its line.
        more: Keys of further columns, and what these are called.
    """
    more = more or {}
    columns = (kind, *_COLUMNS, *more.values())
    lines = [*opening, f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for one in found:
        share = one["mutated_agreed"] / max(1, one["mutated"])
        cells = [one[kind], one["tasks"], one["gold_agreed"], one["gold_right"], one["mutated"]]
        cells += [f"{one['mutated_agreed']} ({share:.1%})", one["mutated_right"], *(one[key] for key in more)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append("\n## Differences\n")
    lines += [f"- {told(one, each)}" for one in found for each in one["differences"]] or ["None."]
    return "\n".join(lines) + "\n"


def reported(
    name: str, found: Sequence[Mapping[str, Any]], page: str, *, began: float, folder: Path | None, as_json: bool
) -> None:
    """Print it as a page or as JSON, and write both into a folder where there is one."""
    result = {"name": name, "measured": found, "goal": "gold 100 %, mutated 99.5 %", **circumstances(began)}
    if folder:
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result) if as_json else page)
