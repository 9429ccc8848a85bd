"""Table of metric names with unit and meaning, from which `docs/reference/metrics.md` is generated.

Rows of `metrics.jsonl` and trackers use the same names. Words in capitals are placeholders for names of a recipe:
`reward/NAME` is `reward/correct` and `reward/turn_cost`.

Note:
    Two means of one step can have different denominators. Metrics of episodes and groups include everything that was
    sampled, metrics of tokens only the data that was trained on.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class MetricName:
    """Entry of the metric table: name, unit and meaning of a metric."""

    name: str
    """Name `area/name`; words in capitals are placeholders."""
    unit: str
    """Unit; empty if it has none, as for a reward."""
    meaning: str
    """Meaning of the value."""
    when: str
    """Steps that have the metric."""


def _read(table: Mapping[str, Mapping[str, Sequence[str]]]) -> tuple[MetricName, ...]:
    return tuple(
        MetricName(name, unit, meaning, when) for when, rows in table.items() for name, (unit, meaning) in rows.items()
    )


_TABLES = tomllib.loads((files("whetstone.reporting") / "metric_names.toml").read_text("utf-8"))
METRICS = _read(_TABLES["metrics"])
"""Metrics in the rows of `metrics.jsonl`."""
TRACKED = _read(_TABLES["tracked"])
"""Metrics that only trackers receive."""
PARTS = (
    "curriculum", "allocate", "start", "environment_wrapper", "action_mask", "dynamic_sampling", "sources",
    "reward",
    "context_transforms", "stops", "rewrites", "replay", "trajectory_filters",
)  # fmt: skip
"""Values of the placeholder `PART`."""


def lookup_metric(name: str) -> MetricName | None:
    """Return the entry of a metric, the most specific one if several match; None if there is none."""
    return _exact().get(name) or next((row for pattern, row in _patterns() if pattern.fullmatch(name)), None)


@functools.cache
def _exact() -> dict[str, MetricName]:
    return {row.name: row for row in (*METRICS, *TRACKED)}


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], MetricName]]:
    patterns = []
    for row in (*METRICS, *TRACKED):
        if any(word.isupper() for word in re.split(r"[/_]", row.name)):
            text = re.sub(r"[A-Z]{2,}|\bK\b|_K$", lambda word: _of(word.group()), row.name)
            patterns.append((re.compile(text), row))
    return sorted(patterns, key=lambda each: each[1].name.startswith("PART"))


def _of(word: str) -> str:
    if word == "PART":
        return f"(?:{'|'.join(PARTS)})"
    if word == "STAGE":
        return "[a-z_]+"
    return r"_\d+" if word == "_K" else ".+"
