"""Page of effects: environments with their entry check, and the matrix of comparisons by environment."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.analysis.paper_verdicts import format_part
from whetstone.evaluation.effect_estimates import Effect, detectable_difference
from whetstone.evaluation.verdicts import BETTER, EFFECTS, NO_DIFFERENCE, WORSE
from whetstone.reporting.charts import plot_differences, plot_pairs

# the harness of claims is no part of the package
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "evidence"))
from claims.bench_settings import read_bench
from claims.claim_effects import MAX_END, MIN_GAIN, MIN_SEEDS, SHARES, START, check_entry, median_deviation
from claims.matrix import method_rows

BENCHES = Path(__file__).parents[2] / "benchmarks" / "evidence" / "benchmarks"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "evidence"
FOLDER = "what-matters"
TOP = """# What matters at this scale

*Written from the stored results of [benchmarks/evidence](../../benchmarks/results/evidence) by `make docs`.*

Small policies, small environments, budgets of minutes. Verdicts follow the [rule of the papers](papers.md): at least
{min_seeds} seeds and a baseline that meets the entry rule. {parts} comparisons of success in {benches} benches:
{counts}.

![Every comparison with its interval, from the lowest to the highest mean]({folder}/every.svg)

Each line is one comparison: the mean difference over seeds with its simultaneous 95 % interval, cut at 100 points. An
interval with a color excludes 0; with fewer than {min_seeds} seeds that is no verdict.
"""
ENVIRONMENTS = """## Environments

Entry rule: the baseline starts at {low} to {high} % success, gains at least {gain} points in every seed and ends below
{end} %. *Deviation* is the standard deviation of one run, the median of the comparisons. *Detectable* is the difference
that one comparison detects with a power of 80 %, with the stored seeds and with 8.

| bench | seeds | baseline, start → end | entry rule | deviation | detectable | with 8 seeds |
| --- | --: | --- | --- | --: | --: | --: |"""
METHODS = """## Methods by setting

Difference of success to GRPO in points, with its 95 % interval, simultaneous over the methods of a setting, in the
settings in which GRPO meets the entry rule; bold if the interval excludes 0. *Probability* is that of a run above a
run of GRPO, mean over settings, with a bootstrap interval that is stratified by setting (Agarwal et al. 2021,
arXiv:2108.13264). Learning rates are not tuned for each method.

| method | {settings} | mean | probability |
| --- | {lines} | --: | --- |"""
MATRIX = """## Comparisons by bench

| bench | method | baseline | effect | figures |
| --- | --- | --- | --- | --- |"""


def results() -> list[dict[str, Any]]:
    """Return all stored results, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]


def what_matters_page() -> tuple[str, dict[str, str]]:
    """Return the page, and its plots by file name."""
    every = results()
    parts = [
        (result, claim, part)
        for result in every
        for claim in result["claims"]
        for part in claim["parts"]
        if part["measure"] in SHARES
    ]
    counts = Counter(part["verdict"] for _, _, part in parts)
    top = TOP.format(
        min_seeds=MIN_SEEDS,
        parts=len(parts),
        benches=len({result["name"] for result, _, _ in parts}),
        counts=", ".join(f"{verdict} {counts[verdict]}" for verdict in EFFECTS),
        folder=FOLDER,
    )
    intervals = [part for _, _, part in parts if part["interval"][0] is not None]
    plots = {"every.svg": plot_differences([_bounds(part) for part in intervals], x_label="points")}
    lines = [top]
    for verdict in (BETTER, WORSE, NO_DIFFERENCE):
        chosen = [each for each in parts if each[2]["verdict"] == verdict and each[2]["counted"]]
        if chosen:
            lines += [f"## {verdict[0].upper()}{verdict[1:]}", ""]
        for result, claim, part in sorted(chosen, key=lambda each: -abs(each[2]["difference"])):
            file = f"{result['name']}-{len(plots)}.svg"
            sides = {name: _values(result, name, part["measure"]) for name in (claim["better"], part["than"])}
            plots[file] = plot_pairs(sides, x_label=f"{part['measure']} (%)")
            lines += [f"{claim['claim']} (`{claim['paper']}`): {format_part(part)}.", "", f"![]({FOLDER}/{file})", ""]
    low, high = (round(100 * share) for share in START)
    limits = {"low": low, "high": high, "gain": round(100 * MIN_GAIN), "end": round(100 * MAX_END)}
    lines += _methods(every)
    lines += [ENVIRONMENTS.format(**limits), *(line for result in every if (line := _environment(result))), "", MATRIX]
    for result, claim, part in parts:
        bench = f"[{result['name']}](../../benchmarks/results/evidence/{result['name']}.md)"
        effect = part["verdict"] if part["counted"] else "not counted"
        lines.append(
            f"| {bench} | {claim['better']} | {part['than']} | {effect}: {part['reason']} | {format_part(part)} |"
        )
    return "\n".join(lines).rstrip() + "\n", plots


def _methods(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of methods by setting; empty if there are fewer than two settings."""
    rows = method_rows(every)
    settings = sorted({setting for row in rows for setting in row.effects})
    if not rows:
        return []
    heads = [f"[{name}](../../benchmarks/results/evidence/{name}.md)" for name in settings]
    lines = [METHODS.format(settings=" | ".join(heads), lines=" | ".join("---" for _ in heads))]
    for row in rows:
        cells = [_difference(row.effects.get(setting)) for setting in settings]
        low, high = row.interval
        probability = f"{100 * row.probability:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        lines.append(f"| {row.name} | {' | '.join(cells)} | {100 * row.difference:+.1f} | {probability} |")
    return [*lines, ""]


def _difference(effect: Effect | None) -> str:
    """Return a difference in points with its interval."""
    if effect is None:
        return ""
    low, high = effect.interval
    text = f"{100 * effect.difference:+.1f}"
    if low != low:
        return text
    return f"{f'**{text}**' if low > 0 or high < 0 else text} ({100 * low:+.1f} to {100 * high:+.1f})"


def _environment(result: Mapping[str, Any]) -> str:
    """Return the row of a bench: entry check of its most compared baseline, deviation and detectable difference."""
    settings = read_bench(BENCHES / f"{result['name']}.yaml")
    baselines = Counter(other for claim in settings.claims for other in claim.others if other not in settings.untrained)
    rows = {each["name"]: {r["seed"]: r for r in each["runs"] if not r["failed"]} for each in result["contenders"]}
    name = next((name for name, _ in baselines.most_common() if rows.get(name)), None)
    if name is None or not settings.learning:
        return ""
    entry = check_entry(rows[name])
    start = "" if entry.start != entry.start else f"{100 * entry.start:.0f} → "
    deviation = median_deviation(result["claims"])
    figures = "| – | – | – |"
    if deviation > 0:
        now, eight = (100 * detectable_difference(deviation, count) for count in (max(2, entry.seeds), MIN_SEEDS))
        figures = f"| {100 * deviation:.1f} | {now:.0f} | {eight:.0f} |"
    bench = f"[{result['name']}](../../benchmarks/results/evidence/{result['name']}.md)"
    check = entry.problem or "met"
    return f"| {bench} | {entry.seeds} | {name}, {start}{100 * entry.end:.0f} % | {check} {figures}"


def _values(result: Mapping[str, Any], name: str, measure: str) -> dict[int, float]:
    """Return seed → measured value of a contender."""
    runs = next(each["runs"] for each in result["contenders"] if each["name"] == name)
    return {
        run["seed"]: run["measures"][measure]
        for run in runs
        if not run["failed"] and run["measures"].get(measure) is not None
    }


def _bounds(part: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return low, mean and high in points."""
    low, high = part["interval"]
    return 100 * low, 100 * part["difference"], 100 * high
