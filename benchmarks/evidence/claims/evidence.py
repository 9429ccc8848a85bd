"""Benches of published claims: contenders trained with the same tasks, budget and seeds, one stored row per run.

    bench file → contenders × seeds (`comparison`) → one row per run → effects of claims (`claim_effects`) → papers

The rows hold everything that verdicts need, so that verdicts are recomputed from a stored result.

**Freshness.** A contender of a result has a fingerprint: the checksum of its weights after two updates with seed 0,
with the processor. A row is stale if the fingerprint differs when it is recomputed on the same machine. The commit is
provenance only.
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

from claims.bench_settings import BenchSettings, unknown_contender
from claims.claim_effects import judge_claims
from claims.measures import Measure, measure_from
from whetstone.analysis.comparison import (
    Contender,
    ContenderRun,
    apply_budget,
    check_contenders,
    check_same_tasks,
    count_timeouts,
    final_task_outcomes,
    learning_curve,
    run_contender,
    run_key,
    stage_cost,
)
from whetstone.assembly.assembly import build_scoring_components
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.evaluation.stage_results import read_stage_results
from whetstone.optional_dependencies import get_package_version
from whetstone.recipe import Resolved, load_recipe
from whetstone.record import latest_checkpoint
from whetstone.reporting import Journal, Progress
from whetstone.training.run_provenance import describe_commit, describe_processor

_CURVE_POINTS = 24


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench whose contenders were resolved and checked."""

    name: str
    settings: BenchSettings
    warm_up: Resolved | None
    """Recipe of the warm-up that all contenders start from; None: there is none."""
    contenders: Sequence[Contender]
    tasks: Sequence[str]
    """Ids of the held-out tasks, in the order of stored outcomes."""

    @property
    def budget(self) -> dict[str, float]:
        """Return unit → limit, for limited units."""
        return self.settings.budget.limits


def assemble_bench(name: str, settings: BenchSettings, *, only: Sequence[str] = ()) -> Bench:
    """Resolve a bench and check that each contender can be built.

    Args:
        only: Names of contenders; empty for all.

    Raises:
        WhetstoneError: A recipe is wrong, a contender cannot be built, or the evaluation tasks differ.
    """
    if settings.script is not None:
        raise RecipeError(f"{name} is run by another benchmark: {command_of(settings.script)}")
    unknown = [each for each in only if each not in settings.contenders]
    if unknown:
        raise RecipeError(f"{name}: {unknown_contender(unknown[0], settings)}")
    budget = settings.budget.limits
    contenders = []
    for called, keys in settings.contenders.items():
        if only and called not in only:
            continue
        changes = {key: value for key, value in keys.items() if key != "with"}
        try:
            resolved = load_recipe(settings.recipe, with_=keys.get("with"), **changes)
            contenders.append(Contender(called, apply_budget(resolved, budget)))
        except RecipeError as error:
            raise RecipeError(f"{name}: contenders.{called}: {error}") from None
    if any(contender.resolved.recipe.evaluation.samples != 1 for contender in contenders):
        raise RecipeError(f"{name}: evaluation.samples: one answer to each held-out task is compared")
    check_same_tasks(contenders)
    check_contenders(contenders)
    base = load_recipe(settings.recipe)
    warm_up = None
    if base.recipe.supervised is not None:
        without_reinforcement = dict.fromkeys(
            ("reinforcement", "ablations", "objective", "advantage", "rollout.group_size")
        )
        warm_up = base.with_changes(without_reinforcement)
    source, _, _ = build_scoring_components(contenders[0].resolved)
    tasks = sorted(task.id for task in source.held_out(contenders[0].resolved.recipe.evaluation.episodes))
    return Bench(name, settings, warm_up, contenders, tasks)


def command_of(script: str) -> str:
    """Return the command that runs the script of a bench.

    Args:
        script: File with its arguments, such as `offline.py hybrid`.
    """
    return f"python -m benchmarks {script.replace('.py', '', 1)}"


def run_bench(
    bench: Bench,
    *,
    seeds: Sequence[int],
    folder: Path,
    stored: Mapping[str, Any] | None,
    progress: Progress,
    machine: str,
) -> dict[str, Any]:
    """Return the result of a bench. Stored rows with the same key and finished runs are reused, the rest is trained.

    Args:
        folder: Directory of the runs.
        stored: An earlier result. Its rows of other contenders and seeds are kept.
        machine: Description of the machine.

    Raises:
        Interrupted: The process received a signal; finished runs are in `folder`.
        WhetstoneError: Same as for `run_contender`.
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
                run = run_contender(contender, seed, folder=folder, progress=progress, warm_up=bench.warm_up)
                row = _row(run, key, bench, measures)
            of_contender[seed] = {**(row or {}), "settings": _settings_key(bench.settings, contender.name)}
    world, tasks = str(bench.settings.recipe.get("extends", "")), len(bench.tasks)
    return build_result(
        bench.name,
        bench.settings,
        rows,
        world=world,
        machine=machine,
        budget=bench.budget,
        tasks=tasks,
        fingerprints=_fingerprints_in(stored),
    )


def build_result(
    name: str,
    settings: BenchSettings,
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]],
    *,
    world: str,
    machine: str,
    budget: Mapping[str, float],
    tasks: int,
    fingerprints: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Build the stored result of a bench.

    Args:
        rows: Contender → seed → row, from `run_bench` or `row_of`.
        world: Name of the recipe that the bench extends.
        tasks: Number of held-out tasks.
        fingerprints: Contender → stored fingerprint.
    """
    result: dict[str, Any] = {
        "name": name,
        "question": settings.question,
        "world": world,
        "version": get_package_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine,
        "script": settings.script,
        "learning": settings.learning,
        "budget": dict(budget),
        "tasks": tasks,
        "contenders": [
            {
                "name": called,
                "changes": keys,
                "settings": _settings_key(settings, called),
                "fingerprint": dict((fingerprints or {}).get(called, {})),
                "runs": [rows[called][seed] for seed in sorted(rows[called])],
            }
            for called, keys in settings.contenders.items()
            if rows.get(called)
        ],
    }
    untried = [each.model_dump() for each in settings.not_tried]
    return {**result, "claims": judge_claims(settings, result), "not_tried": untried}


def rejudge_result(settings: BenchSettings, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored result with the claims of its file as it is now. Rows, date and version stay.

    Args:
        result: A stored result, from `result_of`.
    """
    rows = {each["name"]: {run["seed"]: run for run in each["runs"]} for each in result["contenders"]}
    unchanged = {key: result[key] for key in ("world", "machine", "budget", "tasks")}
    judged = build_result(result["name"], settings, rows, fingerprints=_fingerprints_in(result), **unchanged)
    return {**judged, "version": result["version"], "date": result["date"]}


def _fingerprints_in(result: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    """Return contender → stored fingerprint."""
    every = (result or {}).get("contenders", [])
    return {each["name"]: each["fingerprint"] for each in every if each.get("fingerprint")}


def build_row(
    settings: BenchSettings, contender: str, seed: int, measures: Mapping[str, float | None], outcomes: Sequence[float]
) -> dict[str, Any]:
    """Build the stored row of a run of a script.

    Args:
        measures: Label → value, `success` among them.
        outcomes: Outcome per held-out task, in the same order for every contender.
    """
    return {
        "seed": seed,
        "version": get_package_version(),
        "failed": None,
        "measures": {label: None if value is None else _plain(value) for label, value in measures.items()},
        "outcomes": "".join(map(_mark, outcomes)),
        "settings": _settings_key(settings, contender),
    }


def _suffices(row: Mapping[str, Any] | None, key: str, measures: Mapping[str, Measure]) -> bool:
    return row is not None and row["key"] == key and (bool(row["failed"]) or set(measures) <= set(row["measures"]))


def _key(bench: Bench, contender: Contender, seed: int) -> str:
    """Return the key of a run, independent of its directory."""
    own = run_key(contender.resolved.with_changes({"seed": seed}))
    if bench.warm_up is None or contender.resolved.recipe.supervised is None:
        return own
    return own + run_key(bench.warm_up.with_changes({"seed": seed}))


def _settings_key(settings: BenchSettings, name: str) -> str:
    """Return a digest of the settings of a contender in its bench file."""
    budget = {
        unit: settings.budget.limits.get(unit) for unit in ("episodes", "sampled_tokens", "tool_calls", "seconds")
    }
    decisive = [settings.recipe, {**budget, **settings.budget.limits}, settings.contenders[name]]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _measures(settings: BenchSettings) -> dict[str, Measure]:
    """Return label → measure for all claims and for the table."""
    measures = [measure_from("success"), measure_from("area")]
    measures += [measure for claim in settings.claims for measure in claim.measures]
    return {measure.label: measure for measure in measures}


def _row(run: ContenderRun, key: str, bench: Bench, measures: Mapping[str, Measure]) -> dict[str, Any]:
    """Build the stored row of a run."""
    row: dict[str, Any] = {"seed": run.seed, "key": key, "version": get_package_version(), "failed": run.failed}
    row |= {"processor": describe_processor()[0], "commit": (describe_commit() or {}).get("commit")}
    if run.failed is not None:
        return row
    outcomes = final_task_outcomes(run.folder)
    x, y = learning_curve(run.folder, "sampled_tokens")
    every = max(1, math.ceil(len(x) / _CURVE_POINTS))
    blocks = [slice(k, k + every) for k in range(0, len(x), every)]
    return {
        **row,
        "warm_up": _warm_up_weights(run.folder),
        "updates": sum(each["stage"] == "reinforcement" for each in Journal(run.folder).read()),
        "before": read_stage_results(run.summary)[-1].before["success"],
        "measures": {label: _plain(measure.of(run.folder, run.summary)) for label, measure in measures.items()},
        "spent": {unit: round(most, 1) for unit, most in stage_cost(run.folder).items()},
        "timed_out": count_timeouts(run.folder),
        "outcomes": "".join(_mark(outcomes.get(task)) for task in bench.tasks),
        "curve": [[round(x[block][-1]) for block in blocks], [round(fmean(y[block]), 3) for block in blocks]],
    }


def _plain(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if math.isnan(value) else round(value, 6)


def _mark(outcome: float | None) -> str:
    return "-" if outcome is None else "1" if outcome >= 0.5 else "0"


def checksum_weights(folder: Path) -> str:
    """Return a checksum of the weights in a checkpoint directory.

    Raises:
        RunDirectoryError: It has no weights.
    """
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise RunDirectoryError(f"{folder}: there are no weights; train the run again")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _warm_up_weights(run_dir: Path) -> str | None:
    """Return the checksum of the weights that a run started from; None if they were not those of a shared warm-up."""
    path = load_recipe(str(run_dir / "recipe.yaml")).recipe.policy.path
    return checksum_weights(Path(path)) if path is not None and Path(path).is_dir() else None


def take_fingerprint(bench: Bench, contender: Contender, *, folder: Path, progress: Progress) -> dict[str, str]:
    """Train a contender for two updates with seed 0 and return the checksum of its weights, with the processor.

    Args:
        folder: Directory of the runs; the warm-up of the bench is reused from there.

    Raises:
        WhetstoneError: Same as for `run_contender`.
    """
    two = {"reinforcement.steps": 2, "reinforcement.budget": None, "evaluation.episodes": 1}
    short = Contender(contender.name, contender.resolved.with_changes(two))
    run = run_contender(short, 0, folder=folder, progress=progress, warm_up=bench.warm_up)
    checkpoint = latest_checkpoint(run.folder)
    weights = f"failed: {run.failed}" if checkpoint is None else checksum_weights(checkpoint)
    return {
        "weights": weights,
        "processor": describe_processor()[0],
        "commit": str((describe_commit() or {}).get("commit")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def find_stale(result: Mapping[str, Any], recomputed: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the contenders of a stored result whose rows are stale.

    A contender is stale if its fingerprint differs from the recomputed one on the same processor, or if its settings in
    the bench file changed after a row was stored.

    Args:
        recomputed: Contender → fingerprint of the code as it is now, from `take_fingerprint`.
    """
    return [each["name"] for each in result["contenders"] if _is_stale(each, recomputed.get(each["name"]))]


def _is_stale(contender: Mapping[str, Any], now: Mapping[str, str] | None) -> bool:
    if any(run.get("settings") != contender.get("settings") for run in contender["runs"]):
        return True
    stored = contender.get("fingerprint")
    if not stored or now is None or stored["processor"] != now["processor"]:
        return False
    return bool(stored["weights"] != now["weights"])
