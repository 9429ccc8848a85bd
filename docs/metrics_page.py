"""The page of metrics: every number of a run, from the one table that has them."""

from __future__ import annotations

from collections.abc import Iterable

from whetstone.reporting.metric_names import METRICS, PARTS, TRACKED, MetricName

TOP = """# Every number of a run

*Written from `whetstone.reporting.metric_names` by `make docs`; change it there.*

A run writes one JSON object a step into `metrics.jsonl`: `stage`, `step`, and numbers by the names below. Progress,
reports, `whetstone show` and [trackers](trackers.md) have the same names; they are stable, and a change of one stands
in the change log. Words in capitals stand for what a recipe names. A number that is not finite is `null` there.

"""


def metrics_page() -> str:
    """The whole page."""
    areas: dict[str, list[MetricName]] = {}
    for row in METRICS:
        areas.setdefault(row.name.partition("/")[0], []).append(row)
    parts = [TOP]
    for area, rows in areas.items():
        title = "What parts say of themselves" if area == "PART" else f"`{area}`"
        said = f"`PART` is one of {', '.join(f'`{part}`' for part in PARTS)}.\n\n" if area == "PART" else ""
        parts += [f"## {title}\n\n{said}", _table(rows)]
    parts += ["## What trackers are told besides\n\n", _table(TRACKED)]
    return "".join(parts).rstrip() + "\n"


def _table(rows: Iterable[MetricName]) -> str:
    lines = "".join(f"| `{row.name}` | {row.unit} | {row.said} | {row.when} |\n" for row in rows)
    return f"| name | unit | what it means | when |\n| --- | --- | --- | --- |\n{lines}\n"
