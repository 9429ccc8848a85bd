"""Page of metrics, from the table of metric names."""

from __future__ import annotations

from collections.abc import Iterable

from whetstone.reporting.metric_names import METRICS, PARTS, TRACKED, MetricName

TOP = """# Every metric

*Generated from `whetstone.reporting.metric_names` by `make docs`; edit it there.*

A run writes one JSON object per step to `metrics.jsonl`: `stage`, `step`, and the metrics below. Progress,
reports, `whetstone show` and [trackers](../guide/trackers.md) use the same names. A renamed metric is listed in the
changelog, and the files of earlier runs are converted when they are read. Words in capitals are placeholders for
names in the recipe. A value that is not finite is `null`.

"""


def metrics_page() -> str:
    """Return the whole page."""
    areas: dict[str, list[MetricName]] = {}
    for row in METRICS:
        areas.setdefault(row.name.partition("/")[0], []).append(row)
    parts = [TOP]
    for area, rows in areas.items():
        title = "Metrics of components" if area == "PART" else f"`{area}`"
        note = f"`PART` is one of {', '.join(f'`{part}`' for part in PARTS)}.\n\n" if area == "PART" else ""
        parts += [f"## {title}\n\n{note}", _table(rows)]
    parts += ["## Additional metrics for trackers\n\n", _table(TRACKED)]
    return "".join(parts).rstrip() + "\n"


def _table(rows: Iterable[MetricName]) -> str:
    lines = "".join(f"| `{row.name}` | {row.unit} | {row.meaning} | {row.when} |\n" for row in rows)
    return f"| name | unit | meaning | logged |\n| --- | --- | --- | --- |\n{lines}\n"
