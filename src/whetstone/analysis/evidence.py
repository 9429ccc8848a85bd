"""Does a paper's claim hold here? A bench has contenders on the same tasks and budget, and claims of who beats whom.

    bench file → contenders × seeds (comparison) → one row a run, with all that verdicts read → verdicts → papers

What is stored of a run suffices for every verdict, so verdicts can be computed again from the result alone.

Easy to get wrong: with few seeds the mean is on the claimed side half of the time by luck. A claim holds only where the
interval over seeds says so, and p-values are corrected for how many claims a bench makes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, ValidationError

from whetstone.analysis.claim_status import HELD, IN_PART, NOT_HELD, NOT_TRIED
from whetstone.analysis.comparison import (
    Contender,
    ContenderRun,
    check_contenders,
    check_same_tasks,
    key_of,
    learning_curve,
    outcomes_of,
    run_of,
    spent,
    timed_out,
    within_budget,
)
from whetstone.analysis.measures import Measure, measure_from
from whetstone.assembly.assembly import judged_parts
from whetstone.errors import RecipeError, did_you_mean
from whetstone.evaluation.comparing import paired, student
from whetstone.evaluation.stage_results import read_stage_results
from whetstone.extras import release
from whetstone.recipe import Resolved, load_recipe
from whetstone.recipe.parts import Settings
from whetstone.recipe.problems import problem_of
from whetstone.recipe.stage_settings import BudgetSettings
from whetstone.recipe.yaml_text import yaml_document
from whetstone.reporting import Progress

_CLEAR = 0.05
_CURVE_POINTS = 24


class Claim(Settings):
    """What a paper says of two of the contenders."""

    paper: str
    """Its key in `papers.yaml`."""
    claim: str
    """In a sentence."""
    better: str
    than: str | list[str]
    measure: Any = "success"
    """One or a list; as `measure_from` reads them."""
    within: float = Field(0.0, ge=0)
    """Above 0: it is enough not to be worse by as much as this, in units of the measure."""
    switch: str
    """The one thing that is different, which the paper credits."""

    @property
    def measures(self) -> list[Measure]:
        """Each a part of the claim.

        Raises:
            RecipeError: As `measure_from`.
        """
        return [measure_from(each) for each in (self.measure if isinstance(self.measure, list) else [self.measure])]

    @property
    def others(self) -> list[str]:
        """Those it is to be better than."""
        return [self.than] if isinstance(self.than, str) else self.than


class Untried(Settings):
    """A claim that this bench cannot try."""

    paper: str
    claim: str
    why: str


class BenchSettings(Settings):
    """What a file of `benchmarks/evidence` says."""

    question: str
    script: str | None = None
    """The benchmark that runs it, where stages and data are made by code; it says what each contender is."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Keys of a recipe, `extends` among them; its supervised stage is the warm-up that all contenders begin behind, but
    for those that take it out (`supervised: null`)."""
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    """What each contender's reinforcement may spend."""
    seeds: int = Field(5, ge=1)
    contenders: dict[str, dict[str, Any]]
    """By name, keys laid over the recipe; `with` names methods. Of a script, no keys."""
    claims: list[Claim] = Field(default_factory=list)
    not_tried: list[Untried] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench that was read and checked."""

    name: str
    settings: BenchSettings
    warm_up: Resolved | None
    """What every contender begins behind; None: nothing."""
    contenders: Sequence[Contender]
    tasks: Sequence[str]
    """Ids of the held-out tasks, in the order of stored outcomes."""

    @property
    def budget(self) -> dict[str, float]:
        """By unit, as far as it is limited."""
        return {unit: most for unit, most in self.settings.budget.model_dump().items() if most is not None}


def read_bench(path: Path) -> BenchSettings:
    """A bench's file.

    Raises:
        RecipeError: It is not YAML, a key is unknown, or a claim names no contender or no measure.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    document = yaml_document(text, str(path), plain=True)
    if not isinstance(document, dict):
        raise RecipeError(f"{path}:1  a bench is a mapping of keys to values")
    try:
        bench = BenchSettings.model_validate(document)
    except ValidationError as error:
        found = problem_of(error, BenchSettings)
        raise RecipeError(f"{path}  {found}") from None
    if len(bench.contenders) < 2:
        raise RecipeError(f"{path}  contenders: two or more are compared")
    for place, claim in enumerate(bench.claims):
        for name in (claim.better, *claim.others):
            if name not in bench.contenders:
                raise RecipeError(f"{path}  claims.{place}: {_no_contender(name, bench)}")
        try:
            claim.measures  # noqa: B018
        except RecipeError as error:
            raise RecipeError(f"{path}  claims.{place}.{error}") from None
    return bench


def _no_contender(name: str, settings: BenchSettings) -> str:
    near = did_you_mean(name, settings.contenders)
    return f'no contender "{name}"{near}; there are {", ".join(settings.contenders)}'


def assembled(name: str, settings: BenchSettings, *, only: Sequence[str] = ()) -> Bench:
    """A bench whose every contender can be made.

    Args:
        only: Names of contenders; none: all.

    Raises:
        WhetstoneError: A recipe is wrong, a contender cannot be made, or they are evaluated on other tasks.
    """
    if settings.script is not None:
        raise RecipeError(f"{name} is run by another benchmark: python benchmarks/{settings.script}")
    unknown = [each for each in only if each not in settings.contenders]
    if unknown:
        raise RecipeError(f"{name}: {_no_contender(unknown[0], settings)}")
    budget = {unit: most for unit, most in settings.budget.model_dump().items() if most is not None}
    contenders = []
    for called, keys in settings.contenders.items():
        if only and called not in only:
            continue
        changes = {key: value for key, value in keys.items() if key != "with"}
        try:
            resolved = load_recipe(settings.recipe, with_=keys.get("with"), **changes)
            contenders.append(Contender(called, within_budget(resolved, budget)))
        except RecipeError as error:
            raise RecipeError(f"{name}: contenders.{called}: {error}") from None
    if any(contender.resolved.recipe.evaluation.samples != 1 for contender in contenders):
        raise RecipeError(f"{name}: evaluation.samples: one answer to each held-out task is compared")
    check_same_tasks(contenders)
    check_contenders(contenders)
    base = load_recipe(settings.recipe)
    warm_up = None
    if base.recipe.supervised is not None:
        alone = dict.fromkeys(("reinforcement", "ablations", "objective", "advantage", "rollout.group_size"))
        warm_up = base.with_changes(alone)
    source, _, _ = judged_parts(contenders[0].resolved)
    tasks = sorted(task.id for task in source.held_out(contenders[0].resolved.recipe.evaluation.episodes))
    return Bench(name, settings, warm_up, contenders, tasks)


def run_bench(
    bench: Bench,
    *,
    seeds: Sequence[int],
    folder: Path,
    stored: Mapping[str, Any] | None,
    progress: Progress,
    machine: str,
) -> dict[str, Any]:
    """The result of a bench: rows that are stored under the same key are taken, runs that are there are measured, the
    rest is trained.

    Args:
        folder: Where runs are kept.
        stored: An earlier result; rows of contenders and seeds that are not asked for now stay in it.
        machine: What it ran on, in words.

    Raises:
        Interrupted: The process was asked to stop; what is done is in `folder`.
        WhetstoneError: As `run_of`.
    """
    measures = _measures(bench.settings)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for contender in (stored or {}).get("contenders", []):
        rows[contender["name"]] = {run["seed"]: run for run in contender["runs"]}
    for seed in seeds:
        for contender in bench.contenders:
            key = _key(bench, contender, seed)
            of_contender = rows.setdefault(contender.name, {})
            row = of_contender.get(seed)
            if not _suffices(row, key, measures):
                run = run_of(contender, seed, folder=folder, progress=progress, warm_up=bench.warm_up)
                row = _row(run, key, bench, measures)
            of_contender[seed] = {**(row or {}), "settings": _settings_key(bench.settings, contender.name)}
    world, tasks = str(bench.settings.recipe.get("extends", "")), len(bench.tasks)
    return result_of(bench.name, bench.settings, rows, world=world, machine=machine, budget=bench.budget, tasks=tasks)


def result_of(
    name: str,
    settings: BenchSettings,
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]],
    *,
    world: str,
    machine: str,
    budget: Mapping[str, float],
    tasks: int,
) -> dict[str, Any]:
    """What is stored of a bench.

    Args:
        rows: By contender and seed, as `run_bench` and `row_of` make them.
        world: The recipe it is laid over.
        tasks: Held-out ones.
    """
    told: dict[str, Any] = {
        "name": name,
        "question": settings.question,
        "world": world,
        "version": release(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine,
        "script": settings.script,
        "budget": dict(budget),
        "tasks": tasks,
        "contenders": [
            {
                "name": called,
                "changes": keys,
                "settings": _settings_key(settings, called),
                "runs": [rows[called][seed] for seed in sorted(rows[called])],
            }
            for called, keys in settings.contenders.items()
            if rows.get(called)
        ],
    }
    untried = [each.model_dump() for each in settings.not_tried]
    return {**told, "claims": claims_of(settings, told), "not_tried": untried}


def judged_anew(settings: BenchSettings, told: Mapping[str, Any]) -> dict[str, Any]:
    """A stored result under the claims its file has now; nothing is run, and its date, version and rows stay.

    Args:
        told: As `result_of` made it.
    """
    rows = {each["name"]: {run["seed"]: run for run in each["runs"]} for each in told["contenders"]}
    of_result = {key: told[key] for key in ("world", "machine", "budget", "tasks")}
    again = result_of(told["name"], settings, rows, **of_result)
    return {**again, "version": told["version"], "date": told["date"]}


def row_of(
    settings: BenchSettings, contender: str, seed: int, measures: Mapping[str, float | None], outcomes: Sequence[float]
) -> dict[str, Any]:
    """What is stored of a run that a script made.

    Args:
        measures: By label, `success` among them.
        outcomes: Of the held-out tasks, in the same order for every contender.
    """
    return {
        "seed": seed,
        "version": release(),
        "failed": None,
        "measures": {label: None if value is None else _plain(value) for label, value in measures.items()},
        "outcomes": "".join(map(_mark, outcomes)),
        "settings": _settings_key(settings, contender),
    }


def _suffices(row: Mapping[str, Any] | None, key: str, measures: Mapping[str, Measure]) -> bool:
    return row is not None and row["key"] == key and (bool(row["failed"]) or set(measures) <= set(row["measures"]))


def _key(bench: Bench, contender: Contender, seed: int) -> str:
    """Of a run whatever the folder it is kept in."""
    own = key_of(contender.resolved.with_changes({"seed": seed}))
    if bench.warm_up is None or contender.resolved.recipe.supervised is None:
        return own
    return own + key_of(bench.warm_up.with_changes({"seed": seed}))


def _settings_key(settings: BenchSettings, name: str) -> str:
    """Of what the bench's file says of a contender."""
    said = [settings.recipe, settings.budget.model_dump(), settings.contenders[name]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _measures(settings: BenchSettings) -> dict[str, Measure]:
    """By label, all that the claims read, and what every table shows."""
    found = [measure_from("success"), measure_from("area")]
    found += [measure for claim in settings.claims for measure in claim.measures]
    return {measure.label: measure for measure in found}


def _row(run: ContenderRun, key: str, bench: Bench, measures: Mapping[str, Measure]) -> dict[str, Any]:
    """What is stored of a run."""
    told: dict[str, Any] = {"seed": run.seed, "key": key, "version": release(), "failed": run.failed}
    if run.failed is not None:
        return told
    outcomes = outcomes_of(run.folder)
    x, y = learning_curve(run.folder, "sampled_tokens")
    every = max(1, math.ceil(len(x) / _CURVE_POINTS))
    blocks = [slice(k, k + every) for k in range(0, len(x), every)]
    return {
        **told,
        "before": read_stage_results(run.summary)[-1].before["success"],
        "measures": {label: _plain(measure.of(run.folder, run.summary)) for label, measure in measures.items()},
        "spent": {unit: round(most, 1) for unit, most in spent(run.folder).items()},
        "timed_out": timed_out(run.folder),
        "outcomes": "".join(_mark(outcomes.get(task)) for task in bench.tasks),
        "curve": [[round(x[block][-1]) for block in blocks], [round(fmean(y[block]), 3) for block in blocks]],
    }


def _plain(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else round(value, 6)


def _mark(outcome: float | None) -> str:
    return "-" if outcome is None else "1" if outcome >= 0.5 else "0"


def claims_of(settings: BenchSettings, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became of each claim, from what is stored of the runs alone.

    A part of a claim (one measure against one contender) **holds** where the 95 % interval over seeds of the paired
    difference lies on the claimed side of 0, or of −`within`. It holds *in part* where the mean is on that side and the
    permutation test over tasks, corrected after Holm within the bench, has p < 0.05. A claim holds where all its parts
    do and no run of it failed; in part where any does in either way; else it does not hold at this scale. With a single
    seed nothing is said.

    Args:
        told: A result, or as much of it as `contenders`.
    """
    runs = {each["name"]: {run["seed"]: run for run in each["runs"]} for each in told["contenders"]}
    done = {name: {s: run for s, run in every.items() if not run["failed"]} for name, every in runs.items()}
    parts = [
        (place, other, measure)
        for place, claim in enumerate(settings.claims)
        for other in claim.others
        for measure in claim.measures
    ]
    shared = [set(done.get(settings.claims[p].better, {})) & set(done.get(other, {})) for p, other, _ in parts]
    tested = {
        k: (settings.claims[p].better, other)
        for k, ((p, other, measure), seeds) in enumerate(zip(parts, shared, strict=True))
        if seeds and measure.kind == "success"
    }
    outcomes = {name: {s: _outcomes(run["outcomes"]) for s, run in every.items()} for name, every in done.items()}
    asked = list(dict.fromkeys(tested.values()))
    p_values = dict(zip(asked, (pair.p_tasks for pair in paired(outcomes, asked)), strict=True))
    found: list[dict[str, Any]] = [{**claim.model_dump(), "parts": []} for claim in settings.claims]
    for k, (place, other, measure) in enumerate(parts):
        claim = settings.claims[place]
        p_tasks = p_values[tested[k]] if k in tested else math.nan
        part = _part(claim, other, measure, done, sorted(shared[k]), p_tasks)
        if part is not None:
            found[place]["parts"].append(part)
    for claim, told_of in zip(settings.claims, found, strict=True):
        sides = (claim.better, *claim.others)
        every = ((name, seed, run) for name in sides for seed, run in runs.get(name, {}).items())
        failed = {f"{name}, seed {seed}": run["failed"] for name, seed, run in every if run["failed"]}
        told_of["failed"] = failed
        told_of["verdict"] = _verdict(told_of["parts"], len(claim.others) * len(claim.measures), bool(failed))
        if not told_of["parts"]:
            told_of["why"] = f"every run failed: {next(iter(failed.values()))}" if failed else "not run yet"
        elif told_of["verdict"] == NOT_TRIED:
            told_of["why"] = "one seed so far"
    return found


def _part(
    claim: Claim,
    other: str,
    measure: Measure,
    done: Mapping[str, Mapping[int, Mapping[str, Any]]],
    seeds: Sequence[int],
    p_tasks: float,
) -> dict[str, Any] | None:
    ours, theirs = (
        {s: v for s in seeds if (v := done[name][s]["measures"].get(measure.label)) is not None}
        for name in (claim.better, other)
    )
    both = [s for s in seeds if s in ours and s in theirs]
    if not both:
        return None
    sign = -1.0 if measure.lower_is_better else 1.0
    differences = [ours[s] - theirs[s] for s in both]
    low, high, p_seeds = student(differences)
    mean = fmean(differences)
    worst = sign * (low if sign > 0 else high)
    return {
        "than": other,
        "measure": measure.label,
        "lower_is_better": measure.lower_is_better,
        "ours": fmean(ours[s] for s in both),
        "theirs": fmean(theirs[s] for s in both),
        "difference": mean,
        "interval": [_plain(low), _plain(high)],
        "p_seeds": _plain(p_seeds),
        "p_tasks": _plain(p_tasks),
        "seeds": len(both),
        "holds": worst > -claim.within,
        "in_part": sign * mean > 0 and p_tasks < _CLEAR,
    }


def _verdict(parts: Sequence[Mapping[str, Any]], expected: int, failed: bool) -> str:
    if not parts or min(part["seeds"] for part in parts) < 2:  # one seed is an anecdote
        return NOT_TRIED
    if len(parts) == expected and all(part["holds"] for part in parts) and not failed:
        return HELD
    return IN_PART if any(part["holds"] or part["in_part"] for part in parts) else NOT_HELD


def _outcomes(marks: str) -> dict[str, float]:
    """By place among the tasks."""
    return {str(place): float(mark) for place, mark in enumerate(marks) if mark != "-"}


def stale(told: Mapping[str, Any]) -> list[str]:
    """Contenders of a stored result with rows of another version than this, or of another state of the bench's file."""
    return [
        each["name"]
        for each in told["contenders"]
        if any(run["version"] != release() or run.get("settings") != each.get("settings") for run in each["runs"])
    ]
