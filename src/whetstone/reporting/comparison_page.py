"""HTML page of a comparison: a table, learning curves with bands, and paired tests, in one file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from whetstone.atomic_write import write_text
from whetstone.evaluation.stage_results import PHRASES, SuccessDifference, describe_difference, format_percent
from whetstone.evaluation.verdicts import CANNOT_TELL
from whetstone.reporting import charts
from whetstone.reporting.pareto import front_chart

Curve = tuple[Sequence[float], Sequence[float]]
"""Learning curve: (x, y)."""
_POINTS = 60
_CLEAR = 0.05


def write_comparison(
    path: Path,
    report: Mapping[str, Any],
    curves: Mapping[str, Sequence[Curve]],
    recipes: Mapping[str, str],
    *,
    unit: str,
) -> None:
    """Write the HTML page of a comparison.

    Args:
        path: Path of the page.
        report: Result of `ComparisonResult.to_json`.
        curves: Learning curves by contender, one per seed.
        recipes: Recipe by contender; shown as the difference from the first.
        unit: Unit of the budget, on the x axis.

    Raises:
        SaveError: The page could not be written.
    """
    template = Environment(
        loader=PackageLoader("whetstone", "reporting"), autoescape=True, undefined=StrictUndefined
    ).get_template("comparison.html.j2")
    names = list(recipes)
    page = template.render(
        title=f"{', '.join(names[:-1])} and {names[-1]}",
        sentence=summarize_verdict(report),
        told=report,
        change_sentence=change_sentence,
        format_effect=format_effect,
        curves=charts.plot_bands(
            {name: compute_band(each) for name, each in curves.items()}, x_label=f"{unit.replace('_', ' ')} spent"
        ),
        front=front_chart(
            {row["name"]: list(zip(row["cost"], row["success"], strict=True)) for row in report["contenders"]}
        ),
        recipes=recipe_differences(recipes),
        unit=unit.replace("_", " "),
    )
    write_text(path, page)


def summarize_verdict(report: Mapping[str, Any]) -> str:
    """Formulate the conclusion of a comparison that its intervals over seeds support, in one or two sentences.

    The second sentence warns if every contender ended below the start of its last stage: the best of them is then the
    one that lost least.
    """
    best = max((row for row in report["contenders"] if row["success"]), key=lambda row: row["mean"])
    others = {
        pair["other"] if pair["one"] == best["name"] else pair["one"]: pair["p_seeds"] < _CLEAR
        for pair in report["pairs"]
        if best["name"] in (pair["one"], pair["other"])
    }
    beaten, equal = ([name for name, is_clear in others.items() if is_clear is wanted] for wanted in (True, False))
    means = {row["mean"] for row in report["contenders"] if row["success"]}
    over = f"over {len(best['seeds'])} seed{'s' * (len(best['seeds']) > 1)}"
    if len(means) == 1 and len(report["contenders"]) > 1:
        return f"all contenders have the same success, {100 * best['mean']:.1f} %, {over}.{_warning(report)}"
    sentence = f"{best['name']} has the highest success, {100 * best['mean']:.1f} %"
    if not equal:
        return f"{sentence}; {over} it is better than every other.{_warning(report)}"
    if beaten:
        sentence += f"; {over} it is better than {', '.join(beaten)}, and cannot be distinguished from"
    else:
        sentence += f"; {over} it cannot be distinguished from"
    return f"{sentence} {', '.join(equal)}.{_warning(report)}"


def _warning(report: Mapping[str, Any]) -> str:
    changes = [row["change"]["mean"] for row in report["contenders"] if row["success"] and row.get("change")]
    if not changes or any(change is None or not change < 0 for change in changes):
        return ""
    return (
        " WARNING: every contender ended below its start: training made each of them worse, so the order shows which "
        "one lost least. Use a lower learning rate or more episodes per step."
    )


def change_sentence(row: Mapping[str, Any]) -> str:
    """Describe the change of a contender over its last stage, such as `70 → 40 %, worse than its start (…)`.

    The result is empty for results of earlier releases.

    Args:
        row: Entry of `contenders` in the JSON of a comparison.
    """
    if not row["success"] or not row.get("change"):
        return ""
    mean, low, high = (math.nan if x is None else x for x in (row["change"]["mean"], *row["change"]["interval"]))
    numbers = describe_difference(SuccessDifference(mean, (low, high)))
    rates = f"{format_percent(row['before'])} → {format_percent(row['mean'])} %"
    return f"{rates}, {PHRASES[row['change']['outcome']]}{numbers}"


def format_effect(effect: Mapping[str, Any]) -> str:
    """Format the verdict, difference and simultaneous interval of one contender against the baseline.

    Args:
        effect: Entry of `effects` in the JSON of a comparison.
    """
    low, high = (math.nan if bound is None else bound for bound in effect["interval"])
    interval = "no interval" if math.isnan(low) else f"95 % {100 * low:+.1f} to {100 * high:+.1f}, simultaneous"
    needed = effect["seeds_needed"]
    if effect["verdict"] != CANNOT_TELL:
        advice = ""
    elif needed is None:
        advice = "; run more seeds"
    else:
        advice = f"; {max(needed, effect['seeds'] + 1)} seeds detect 5 points with a power of 80 %"
    seeds = f"{effect['seeds']} seed{'s' * (effect['seeds'] > 1)}"
    figures = f"{100 * effect['difference']:+.1f} points ({interval}), {seeds}"
    return f"{effect['contender']} against {effect['baseline']}: {effect['verdict']}: {figures}{advice}"


def compute_band(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Compute (x, mean, lowest, highest) of curves with different x values, over their common range."""
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


def recipe_differences(recipes: Mapping[str, str]) -> dict[str, str]:
    """Return, by contender, the whole first recipe and only the differing lines of each other recipe."""
    texts: dict[str, str] = {}
    first: list[str] | None = None
    for name, text in recipes.items():
        lines = text.splitlines()
        if first is None:
            first, texts[name] = lines, text
            continue
        changed = [line for line in difflib.ndiff(first, lines) if line.startswith(("- ", "+ "))]
        texts[name] = "\n".join(changed) or "the same"
    return texts


def _percent(rate: float | None) -> str:
    return f"{'–':>6}" if rate is None or math.isnan(rate) else f"{100 * rate:4.1f} %"


def table_lines(report: Mapping[str, Any]) -> list[str]:
    """Format the comparison as a table for the terminal."""
    width = max(len(row["name"]) for row in report["contenders"])
    spent = "spent: episodes  sampled tokens  tool calls  seconds"
    columns = f"success    start  untrained   by seed{'':<17} calls  tokens   {spent}"
    lines = [f"{'':<{width}}  {columns}"]
    for row in sorted(report["contenders"], key=lambda row: -row["mean"] if row["success"] else math.inf):
        seeds = " ".join(f"{100 * value:.1f}" for value in row["success"])
        spent = row["spent"]
        lines.append(
            f"{row['name']:<{width}}  {100 * row['mean']:6.1f} %  {_percent(row['before'])}  "
            f"{_percent(row.get('untrained'))}      {seeds:<23} {row['tool_calls']:6.2f}"
            f"  {row['tokens']:6.1f}   {spent['episodes']:15,.0f}  {spent['sampled_tokens']:14,.0f}"
            f"  {spent['tool_calls']:10,.0f}  {spent['seconds']:7,.0f}"
        )
    lines += [f"{row['name']}: {sentence}" for row in report["contenders"] if (sentence := change_sentence(row))]
    lines += [
        f"{row['name']}, seed {seed}: failed: {why}"
        for row in report["contenders"]
        for seed, why in row["failed"].items()
    ]
    lines += [format_effect(effect) for effect in report.get("effects", ())]
    for pair in report["pairs"]:
        low, high = pair["interval"]
        over = (
            "one seed is not sufficient to compare methods"
            if math.isnan(low)
            else f"95 % {100 * low:+.1f} to {100 * high:+.1f}, p {pair['p_seeds']:.3f}"
        )
        lines.append(
            f"{pair['one']} − {pair['other']}: {100 * pair['difference']:+.1f} points over seeds ({over});"
            f" over {pair['tasks']} tasks p {pair['p_tasks']:.3f}; effect {pair['effect']:+.2f}"
        )
    return [*lines, summarize_verdict(report)]
