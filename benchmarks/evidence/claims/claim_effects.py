"""Effect of each claim of a bench, computed from stored rows only.

    rows of contenders → entry rule of the baseline → effect with interval → verdict of a part → verdict of the claim

**Parts.** A claim compares two contenders in one or several measures. A part has one of the verdicts `better`, `worse`,
`no difference of 5 points`, `cannot tell` and `not testable here`; the claim has that of its weakest part.

**Entry rule.** A comparison is testable if the baseline starts at 20 to 45 % success, gains at least 20 points in every
seed and ends below 85 %. A bench that measures no learning (`learning: false`) has no entry rule.

**Not counted.** A comparison with a policy that does not learn (`untrained`) has figures and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from claims.bench_settings import BenchSettings, Claim
from claims.measures import Measure
from whetstone.analysis.paper_verdicts import format_part
from whetstone.evaluation.effect_estimates import MARGIN, Effect, benjamini_hochberg, effects_against
from whetstone.evaluation.verdicts import (
    BETTER,
    CANNOT_TELL,
    NO_DIFFERENCE,
    NOT_RUN,
    NOT_TESTABLE,
    WORSE,
    find_weakest_effect,
)

SHARES = ("success", "area under the curve")
"""Measures that are fractions of success, to which the margin of 5 points applies."""
FLOOR, CEILING = 0.03, 0.97
"""Success below or above which all runs of a contender are saturated; its scatter is then not pooled."""
MIN_SEEDS = 8
"""Number of seeds below which a claim is neither better nor worse nor equal."""
START = (0.20, 0.45)
"""Success of the baseline before reinforcement that the entry rule allows."""
MIN_GAIN = 0.20
MAX_END = 0.85
_FALSE_DISCOVERIES = 0.05

Rows = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Contender → seed → stored row of a run that did not fail."""


@dataclass(frozen=True, slots=True)
class EntryCheck:
    """Start, gain and end of a baseline, and the part of the entry rule that it does not meet."""

    start: float
    """Mean success before reinforcement; NaN if no row has it."""
    least_gain: float
    end: float
    seeds: int

    @property
    def problem(self) -> str | None:
        """Return the reason why the rule is not met; None if it is."""
        if math.isnan(self.start):
            return "no stored success before reinforcement"
        if not START[0] <= self.start <= START[1]:
            return f"the baseline starts at {100 * self.start:.0f} %"
        if self.least_gain < MIN_GAIN:
            return f"the baseline gains {100 * self.least_gain:+.0f} points in one of {self.seeds} seeds"
        return f"the baseline ends at {100 * self.end:.0f} %" if self.end >= MAX_END else None


def check_entry(rows: Mapping[int, Mapping[str, Any]]) -> EntryCheck:
    """Return start, least gain and end of a baseline.

    Args:
        rows: Its rows by seed, without failed runs.
    """
    ends = {seed: row["measures"]["success"] for seed, row in rows.items()}
    gains = [ends[seed] - row["before"] for seed, row in rows.items() if row.get("before") is not None]
    if not gains or len(gains) < len(rows):
        return EntryCheck(math.nan, math.nan, fmean(ends.values()) if ends else math.nan, len(rows))
    starts = [row["before"] for row in rows.values()]
    return EntryCheck(fmean(starts), min(gains), fmean(ends.values()), len(rows))


def judge_claims(settings: BenchSettings, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of a bench with parts, verdict and reason.

    Args:
        result: A stored result, or as much of it as `contenders`.

    Raises:
        ValueError: Two contenders of one seed started from different weights after the warm-up.
    """
    runs = {each["name"]: {run["seed"]: run for run in each["runs"]} for each in result["contenders"]}
    done: Rows = {name: {s: run for s, run in every.items() if not run["failed"]} for name, every in runs.items()}
    _check_warm_ups(done)
    return [_claim(claim, settings, runs, done) for claim in settings.claims]


def median_deviation(claims: Sequence[Mapping[str, Any]]) -> float:
    """Return the median standard deviation of one run over the comparisons of success; 0 if none is known."""
    parts = [part for claim in claims for part in claim["parts"] if part["measure"] == "success"]
    deviations: list[float] = [part["deviation"] for part in parts if part["deviation"] is not None]
    return median(deviations or [0.0])


def _check_warm_ups(rows: Rows) -> None:
    hashes: dict[int, dict[str, str]] = {}
    for name, every in rows.items():
        for seed, row in every.items():
            if row.get("warm_up") is not None:
                hashes.setdefault(seed, {})[name] = row["warm_up"]
    for seed, by_name in hashes.items():
        if len(set(by_name.values())) > 1:
            different = ", ".join(f"{name} {weights[:8]}" for name, weights in by_name.items())
            raise ValueError(f"seed {seed}: contenders started from different warm-ups: {different}; run them again")


def _claim(claim: Claim, settings: BenchSettings, runs: Rows, done: Rows) -> dict[str, Any]:
    parts = [
        part
        for other in claim.others
        for measure in claim.measures
        if (part := _part(claim, other, measure, settings, done)) is not None
    ]
    sides = (claim.better, *claim.others)
    every = ((name, seed, run) for name in sides for seed, run in runs.get(name, {}).items())
    failed = {f"{name}, seed {seed}": str(run["failed"]) for name, seed, run in every if run["failed"]}
    counted = [part for part in parts if part["counted"]]
    verdict, reason = NOT_RUN, "not run yet"
    if parts and not counted:
        verdict, reason = NOT_TESTABLE, "compared only with a policy that does not learn"
    elif counted and len(parts) == len(claim.others) * len(claim.measures):
        verdict = find_weakest_effect(part["verdict"] for part in counted)
        reason = next(part["reason"] for part in counted if part["verdict"] == verdict)
    if failed and verdict not in (NOT_RUN, NOT_TESTABLE):
        verdict, reason = CANNOT_TELL, f"failed: {next(iter(failed))}"
    elif failed and not parts:
        reason = f"every run failed: {next(iter(failed.values()))}"
    return {**claim.model_dump(), "parts": parts, "failed": failed, "verdict": verdict, "reason": reason}


def _part(claim: Claim, other: str, measure: Measure, settings: BenchSettings, done: Rows) -> dict[str, Any] | None:
    values = _values(measure, done)
    better_values, baseline_values = values.get(claim.better, {}), values.get(other, {})
    both = sorted(set(better_values) & set(baseline_values))
    if not both:
        return None
    pooled = _pooled(values, measure, {claim.better, other})
    compared = [name for name in _compared_with(other, settings, measure) if name in pooled]
    effect = next(e for e in effects_against(other, pooled, compared) if e.contender == claim.better)
    verdict, reason = _verdict(claim, other, measure, settings, done, effect)
    low, high = effect.interval
    is_share = measure.label in SHARES
    return {
        "than": other,
        "measure": measure.label,
        "lower_is_better": measure.lower_is_better,
        "better": fmean(better_values[seed] for seed in both),
        "baseline": fmean(baseline_values[seed] for seed in both),
        "difference": effect.difference,
        "interval": [_plain(low), _plain(high)],
        "p": _plain(effect.p),
        "deviation": _plain(effect.deviation),
        "seeds": effect.seeds,
        "seeds_needed": max(MIN_SEEDS, effect.seeds_needed() or 0) if is_share else MIN_SEEDS,
        "counted": other not in settings.untrained,
        "verdict": verdict,
        "reason": reason,
    }


def _values(measure: Measure, done: Rows) -> dict[str, dict[int, float]]:
    return {
        name: {s: float(v) for s, row in every.items() if (v := row["measures"].get(measure.label)) is not None}
        for name, every in done.items()
    }


def _pooled(
    values: Mapping[str, Mapping[int, float]], measure: Measure, always: set[str]
) -> dict[str, Mapping[int, float]]:
    """Return the contenders whose scatter is pooled: none that stays at the floor or at the ceiling."""

    def is_saturated(name: str) -> bool:
        every = values[name].values()
        return measure.label in SHARES and (max(every) <= FLOOR or min(every) >= CEILING)

    return {name: seeds for name, seeds in values.items() if seeds and (name in always or not is_saturated(name))}


def _compared_with(baseline: str, settings: BenchSettings, measure: Measure) -> list[str]:
    """Return the contenders that claims compare with a baseline in a measure."""
    names = [
        claim.better
        for claim in settings.claims
        if baseline in claim.others and measure.label in {each.label for each in claim.measures}
    ]
    return list(dict.fromkeys(names))


def _verdict(
    claim: Claim, other: str, measure: Measure, settings: BenchSettings, done: Rows, effect: Effect
) -> tuple[str, str]:
    """Return the verdict of a part and its reason."""
    if claim.untestable is not None:
        return NOT_TESTABLE, claim.untestable
    if other in settings.untrained:
        return NOT_TESTABLE, f"{other} does not learn"
    if _is_identical(claim.better, other, measure, done):
        return NOT_TESTABLE, "equal in every task of every seed"
    entry = check_entry(done[other]) if settings.learning else None
    if entry is not None and entry.problem is not None:
        return NOT_TESTABLE, f"entry rule: {entry.problem}"
    if effect.seeds < MIN_SEEDS:
        return CANNOT_TELL, f"{effect.seeds} of {MIN_SEEDS} seeds"
    is_share = measure.label in SHARES
    low, high = effect.interval
    worst = high if measure.lower_is_better else low
    if claim.within and not math.isnan(low) and (-worst if measure.lower_is_better else worst) > -claim.within:
        better = effect.get_verdict(lower_is_better=measure.lower_is_better, margin=None) == BETTER
        return BETTER if better else NO_DIFFERENCE, f"not worse by {claim.within:g}"
    verdict = effect.get_verdict(
        lower_is_better=measure.lower_is_better, margin=MARGIN if is_share else None, min_seeds=MIN_SEEDS
    )
    if verdict == CANNOT_TELL and is_share and not math.isnan(low):
        return verdict, f"{max(effect.seeds_needed() or 0, effect.seeds + 1)} seeds detect 5 points"
    clearly = is_share and verdict in (BETTER, WORSE) and min(abs(low), abs(high)) > MARGIN
    return verdict, "clearly" if clearly else "95 % interval"


def _is_identical(one: str, other: str, measure: Measure, done: Rows) -> bool:
    """Return whether two contenders have the same measured values and outcomes in all seeds that both have."""
    both = sorted(set(done[one]) & set(done[other]))
    pairs = [(done[one][seed], done[other][seed]) for seed in both]
    if measure.label == "success":
        return bool(pairs) and all(a.get("outcomes") == b.get("outcomes") for a, b in pairs)
    return bool(pairs) and all(a["measures"].get(measure.label) == b["measures"].get(measure.label) for a, b in pairs)


def adjust_over_page(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return claims of all benches with `better` and `worse` only if they pass Benjamini–Hochberg over the page.

    The p-values of all counted parts with enough seeds are adjusted together; a part above 5 % cannot tell.
    """
    eligible = [
        (c, k)
        for c, claim in enumerate(claims)
        for k, part in enumerate(claim["parts"])
        if part["counted"] and part["verdict"] != NOT_TESTABLE and part["seeds"] >= MIN_SEEDS and part["p"] is not None
    ]
    adjusted = benjamini_hochberg([claims[c]["parts"][k]["p"] for c, k in eligible])
    rejected = {
        where
        for where, q in zip(eligible, adjusted, strict=True)
        if q >= _FALSE_DISCOVERIES and claims[where[0]]["parts"][where[1]]["verdict"] in (BETTER, WORSE)
    }
    result = []
    for c, claim in enumerate(claims):
        parts = [
            {**part, "verdict": CANNOT_TELL, "reason": "not significant over the page"} if (c, k) in rejected else part
            for k, part in enumerate(claim["parts"])
        ]
        changed = any((c, k) in rejected for k in range(len(parts)))
        verdict = (
            find_weakest_effect(part["verdict"] for part in parts if part["counted"]) if changed else claim["verdict"]
        )
        reason = "not significant over the page" if changed and verdict == CANNOT_TELL else claim["reason"]
        result.append({**claim, "parts": parts, "verdict": verdict, "reason": reason})
    return result


def _plain(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if math.isnan(value) else round(value, 6)


def collect_verdicts(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the content of `verdicts.json`: the effect of every claim that was run, over all stored results.

    Args:
        results: Stored results of benches.
    """
    ordered = sorted(results, key=lambda result: str(result["name"]))
    pairs = [(result, claim) for result in ordered for claim in result["claims"]]
    adjusted = adjust_over_page([claim for _, claim in pairs])
    return [
        {
            "paper": claim["paper"],
            "bench": result["name"],
            "world": result["world"],
            "claim": claim["claim"],
            "verdict": claim["verdict"],
            "reason": claim["reason"],
            "figures": "; ".join(format_part(part) for part in claim["parts"]),
            "seeds": min(part["seeds"] for part in claim["parts"]),
            "date": result["date"],
            "version": result["version"],
            "scale": _scale(result),
        }
        for (result, _), claim in zip(pairs, adjusted, strict=True)
        if claim["verdict"] != NOT_RUN
    ]


def _scale(result: Mapping[str, Any]) -> str:
    """Return budget and number of tasks; empty for a script, which defines its own."""
    limits = [f"{limit:,.0f} {unit.replace('_', ' ')}" for unit, limit in result["budget"].items()]
    return " and ".join([*limits, f"{result['tasks']} tasks"]) if limits else ""
