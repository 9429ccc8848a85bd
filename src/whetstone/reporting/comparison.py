"""The page of a comparison: a table, learning curves with bands, and pairs, in one file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from whetstone.atomic_write import write_text
from whetstone.reporting import charts
from whetstone.reporting.front import front_chart

Curve = tuple[Sequence[float], Sequence[float]]
"""(x, y)"""
_POINTS = 60
_CLEAR = 0.05


def write_comparison(
    path: Path,
    told: Mapping[str, Any],
    curves: Mapping[str, Sequence[Curve]],
    recipes: Mapping[str, str],
    *,
    unit: str,
) -> None:
    """Write the page.

    Args:
        told: As `ComparisonResult.to_json` says it.
        curves: By contender, one of each seed.
        recipes: By contender, its recipe; shown as what differs from the first.
        unit: What was spent, along the axis.

    Raises:
        SaveError: It could not be written.
    """
    template = Environment(
        loader=PackageLoader("whetstone", "reporting"), autoescape=True, undefined=StrictUndefined
    ).get_template("comparison.html.j2")
    names = list(recipes)
    page = template.render(
        title=f"{', '.join(names[:-1])} and {names[-1]}",
        sentence=verdict_of(told),
        told=told,
        curves=charts.bands(
            {name: band_of(each) for name, each in curves.items()}, x_label=f"{unit.replace('_', ' ')} spent"
        ),
        front=front_chart(
            {row["name"]: list(zip(row["cost"], row["success"], strict=True)) for row in told["contenders"]}
        ),
        recipes=differences(recipes),
        unit=unit.replace("_", " "),
    )
    write_text(path, page)


def verdict_of(told: Mapping[str, Any]) -> str:
    """What came of it, in a sentence, from the intervals alone."""
    best = max((row for row in told["contenders"] if row["success"]), key=lambda row: row["mean"])
    beaten = [
        pair["other"] if pair["one"] == best["name"] else pair["one"]
        for pair in told["pairs"]
        if best["name"] in (pair["one"], pair["other"]) and pair["p_seeds"] < _CLEAR
    ]
    said = f"{best['name']} has the highest success, {100 * best['mean']:.1f} %"
    rest = len(told["contenders"]) - 1
    if len(beaten) == rest:
        return f"{said}, and over seeds it can be told from every other."
    if beaten:
        return f"{said}; over seeds it can be told from {', '.join(beaten)}, from the others not."
    return f"{said}; over {len(best['seeds'])} seeds it cannot be told from any other."


def band_of(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """(x, mean, lowest, highest) of curves that were measured at places of their own, as far as all of them go."""
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return [], [], [], []
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return [], [], [], []
    places = np.linspace(start, end, _POINTS) if end > start else np.array([start])
    smooth = [np.interp(places, x, charts.running_mean(y, max(1, len(y) // 15))) for x, y in curves]
    stacked = np.vstack(smooth)
    return list(places), list(stacked.mean(0)), list(stacked.min(0)), list(stacked.max(0))


def differences(recipes: Mapping[str, str]) -> dict[str, str]:
    """The first recipe whole, of each other the lines that differ from it."""
    found: dict[str, str] = {}
    first: list[str] | None = None
    for name, text in recipes.items():
        lines = text.splitlines()
        if first is None:
            first, found[name] = lines, text
            continue
        changed = [line for line in difflib.ndiff(first, lines) if line.startswith(("- ", "+ "))]
        found[name] = "\n".join(changed) or "the same"
    return found


def table_lines(told: Mapping[str, Any]) -> list[str]:
    """The table for a terminal."""
    width = max(len(row["name"]) for row in told["contenders"])
    columns = f"success   by seed{'':<17} calls  tokens   spent: episodes  sampled tokens  tool calls  seconds"
    lines = [f"{'':<{width}}  {columns}"]
    for row in sorted(told["contenders"], key=lambda row: -row["mean"] if row["success"] else math.inf):
        seeds = " ".join(f"{100 * value:.1f}" for value in row["success"])
        spent = row["spent"]
        lines.append(
            f"{row['name']:<{width}}  {100 * row['mean']:6.1f} %  {seeds:<23} {row['tool_calls']:6.2f}"
            f"  {row['tokens']:6.1f}   {spent['episodes']:15,.0f}  {spent['sampled_tokens']:14,.0f}"
            f"  {spent['tool_calls']:10,.0f}  {spent['seconds']:7,.0f}"
        )
    lines += [
        f"{row['name']}, seed {seed}: failed: {why}"
        for row in told["contenders"]
        for seed, why in row["failed"].items()
    ]
    for pair in told["pairs"]:
        low, high = pair["interval"]
        over = (
            "one seed tells nothing of the methods"
            if math.isnan(low)
            else f"95 % {100 * low:+.1f} to {100 * high:+.1f}, p {pair['p_seeds']:.3f}"
        )
        lines.append(
            f"{pair['one']} − {pair['other']}: {100 * pair['difference']:+.1f} points over seeds ({over});"
            f" over {pair['tasks']} tasks p {pair['p_tasks']:.3f}; effect {pair['effect']:+.2f}"
        )
    return lines
