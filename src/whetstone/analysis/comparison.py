"""Comparison of methods: each is trained with the same tasks, budget and seeds, followed by a paired test.

    contenders × seeds → (finished runs are reused) → train → outcomes by seed and task → paired

Each run has a separate folder. Its name is a hash of everything that determines it: recipe, seed, package version and
the code that the recipe names. So a new contender adds only its own runs, and a changed one is run again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from whetstone.assembly.assembly import RunComponents, assemble, build_scoring_components
from whetstone.atomic_write import write_text
from whetstone.errors import (
    CreditError,
    MismatchError,
    NonFiniteError,
    PromptTooLong,
    RecipeError,
    RunDirectoryError,
    SamplingExhausted,
    TooManyFailuresError,
    WhetstoneError,
)
from whetstone.evaluation.effect_estimates import Effect, effects_against
from whetstone.evaluation.significance import PairedComparison, compare_pairs, t_interval
from whetstone.evaluation.stage_results import (
    StageResult,
    SuccessDifference,
    last_evaluation,
    read_stage_results,
    untrained_of,
)
from whetstone.optional_dependencies import get_package_version
from whetstone.recipe import Recipe, Resolved, load_recipe
from whetstone.recipe.variables import find_decisive_variables
from whetstone.record import latest_checkpoint, read_json
from whetstone.record.custom_code import find_custom_code
from whetstone.reporting import Journal, Progress, read_trajectories
from whetstone.reporting.trajectories import read_task_outcomes
from whetstone.training.budget import UNITS, compute_spending
from whetstone.training.permission import Ask, permit_run, training_parts
from whetstone.training.run import train
from whetstone.trajectory import EndReason

_OF_THE_METHOD = (CreditError, TooManyFailuresError, MismatchError, NonFiniteError, PromptTooLong, SamplingExhausted)
"""Errors that a method can cause itself, unlike a full disk or a wrong recipe."""
_EMPTY = re.compile(r"^\w+: \[\]\n", re.MULTILINE)
_NAMED = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Contender:
    """Recipe that takes part in a comparison, with a unique name."""

    name: str
    """Unique name in the comparison."""
    resolved: Resolved
    """Resolved recipe."""


@dataclass(frozen=True, slots=True)
class ContenderRun:
    """Finished or failed run of a contender with one seed."""

    seed: int
    """Seed of the run."""
    folder: Path
    """Run directory."""
    summary: Mapping[str, Any]
    """Content of `summary.json`; empty if the run failed."""
    reused: bool
    """Whether a finished run was reused."""
    failed: str | None = None
    """Error of a failed run; None if it succeeded."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Result of a comparison: the runs of all contenders, and their paired tests."""

    runs: Mapping[str, Sequence[ContenderRun]]
    """Runs by contender."""
    pairs: Sequence[PairedComparison]
    """Paired tests of all pairs of contenders."""
    budget: Mapping[str, float]
    """Budget of each run, by unit."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of `comparison.json`."""
        rows = []
        for name, every in self.runs.items():
            runs = [run for run in every if run.failed is None]
            after = [last_evaluation(run.summary) for run in runs]
            results = [read_stage_results(run.summary)[-1] for run in runs]
            change = change_over_seeds(results)
            success = [one["success"] for one in after]
            rows.append(
                {
                    "name": name,
                    "seeds": [run.seed for run in runs],
                    "failed": {str(run.seed): run.failed for run in every if run.failed is not None},
                    "success": success,
                    "mean": _mean(success),
                    "deviation": stdev(success) if len(success) > 1 else math.nan,
                    "untrained": _mean([untrained_of(run.summary)["success"] for run in runs]),
                    "before": _mean([result.before["success"] for result in results]),
                    "change": {"mean": change.mean, "interval": change.interval, "outcome": change.outcome},
                    "reward": _mean([one["reward"] for one in after]),
                    "turns": _mean([one["turns"] for one in after]),
                    "tool_calls": _mean([one["tool_calls"] for one in after]),
                    "tokens": _mean([one["action_tokens"] for one in after]),
                    "cost": [one.get("cost", 0.0) for one in after],
                    "invalid": sum(one["invalid"] for one in after),
                    "spent": {unit: _mean([stage_cost(run.folder)[unit] for run in runs]) for unit in UNITS},
                    "folders": [str(run.folder) for run in every],
                    "reused": sum(run.reused for run in every),
                }
            )
        return {
            "budget": dict(self.budget),
            "contenders": rows,
            "effects": [effect.to_json() for effect in self.effects],
            "pairs": [asdict(pair) for pair in self.pairs],
        }

    @property
    def effects(self) -> list[Effect]:
        """Return the effect of each contender on success, relative to the first contender with a finished run."""
        results = {
            name: {run.seed: last_evaluation(run.summary)["success"] for run in every if run.failed is None}
            for name, every in self.runs.items()
        }
        results = {name: seeds for name, seeds in results.items() if seeds}
        baseline, *others = results
        return effects_against(baseline, results, others)


def change_over_seeds(results: Sequence[StageResult]) -> SuccessDifference:
    """Compare the ends of the last stage with its starts over the runs of a contender.

    The interval is Student's over seeds, and at least as wide as the uncertainty over tasks of the mean of the runs:
    two seeds with equal differences do not show that there is no scatter. With one seed it is that of the run.
    """
    differences = [result.difference for result in results if not math.isnan(result.difference.mean)]
    if len(differences) < 2:
        return differences[0] if differences else SuccessDifference(math.nan, (math.nan, math.nan))
    count, mean = len(differences), fmean(each.mean for each in differences)
    low, high, _ = t_interval([each.mean for each in differences])
    below = math.hypot(*(each.mean - each.interval[0] for each in differences)) / count
    above = math.hypot(*(each.interval[1] - each.mean for each in differences)) / count
    return SuccessDifference(mean, (min(low, mean - below), max(high, mean + above)))


def _mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; NaN without values."""
    return fmean(values) if values else math.nan


def build_contenders(
    recipes: Sequence[str], overrides: Sequence[str], *, budget: Mapping[str, float]
) -> list[Contender]:
    """Build the contenders: each recipe with each combination of swept values.

    Args:
        overrides: `key=value`, or `key=one,two,…` for a sweep.
        budget: Budget of each run by unit; overrides the recipes.

    Raises:
        RecipeError: If a recipe or key is wrong, contenders are equal, there is only one, or their tasks differ.
    """
    axes: list[list[tuple[str, str]]] = []
    fixed: list[str] = []
    for override in overrides:
        key, _, text = override.partition("=")
        values = expand_sweep(text)
        if key == "seed" and len(values) > 1:
            raise RecipeError("seed: cannot be swept; every contender runs with the same seeds, see --seeds")
        if len(values) > 1:
            axes.append([(key, value) for value in values])
        else:
            fixed.append(override)
    contenders: dict[str, Contender] = {}
    for recipe in recipes:
        for chosen in itertools.product(*axes):
            changes = [f"{key}={value}" for key, value in chosen]
            resolved = apply_budget(load_recipe(recipe, [*fixed, *changes]), budget)
            parts = [Path(recipe).stem] if len(set(recipes)) > 1 or not changes else []
            name = " ".join([*parts, *(_label(key, value) for key, value in chosen)])
            if name in contenders:
                raise RecipeError(f"{name}: the contender is named twice; compare recipes or values that differ")
            contenders[name] = Contender(name, resolved)
    if len(contenders) < 2:
        raise RecipeError(
            "compare needs two or more contenders; name several recipes, or several values of a key, such as "
            "advantage=group_relative,gigpo"
        )
    check_same_tasks(list(contenders.values()))
    return list(contenders.values())


def apply_budget(resolved: Resolved, budget: Mapping[str, float]) -> Resolved:
    """Return a recipe for a comparison: without ablations, and with this budget.

    Args:
        budget: Budget by unit; overrides the recipe.

    Raises:
        RecipeError: The recipe has no reinforcement stage.
    """
    if resolved.recipe.reinforcement is None:
        raise RecipeError(f"{resolved.name}: reinforcement is not set, so there is nothing to compare")
    limits = {f"reinforcement.budget.{u}": most if u == "seconds" else int(most) for u, most in budget.items()}
    return _limit_steps(resolved.with_changes({"ablations": None, **limits}))


def _limit_steps(resolved: Resolved) -> Resolved:
    """Limit the steps to the budget of episodes, so that schedules over steps (curricula) cover the actual steps."""
    reinforcement, rollout = resolved.recipe.reinforcement, resolved.recipe.rollout
    if reinforcement is None or reinforcement.budget is None or reinforcement.budget.episodes is None:
        return resolved
    steps = math.ceil(reinforcement.budget.episodes / (reinforcement.tasks_per_step * rollout.group_size))
    return resolved.with_changes({"reinforcement.steps": steps}) if steps < reinforcement.steps else resolved


def check_contenders(contenders: Sequence[Contender]) -> None:
    """Check that every contender can be assembled, before the first run.

    Raises:
        WhetstoneError: If one cannot; the message names it.
    """
    assemblies: list[RunComponents] = []
    for contender in contenders:
        recipe = contender.resolved.recipe
        like = [a for a in assemblies if _same_policy(a.resolved.recipe, recipe)]
        try:
            assemblies.append(assemble(contender.resolved, like[0].policy if like else None).check())
        except WhetstoneError as error:
            raise type(error)(f"{contender.name}: {error}") from None


def _same_policy(one: Recipe, other: Recipe) -> bool:
    return (one.policy, one.chat, one.tasks, one.critic) == (other.policy, other.chat, other.tasks, other.critic)


def expand_sweep(text: str) -> list[str]:
    """Split `one,two,three` into values; commas in brackets and quotes do not split.

    >>> expand_sweep("gigpo,{name: rloo, scale: true},[a, b]"), expand_sweep("")
    (['gigpo', '{name: rloo, scale: true}', '[a, b]'], [''])
    """
    values, depth, quote, now = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            values.append(now.strip())
            now = ""
            continue
        now += letter
    return [*values, now.strip()]


def compare(
    contenders: Sequence[Contender],
    *,
    seeds: Sequence[int],
    folder: Path,
    budget: Mapping[str, float],
    progress: Progress,
    ask: Ask | None = None,
) -> ComparisonResult:
    """Run missing runs and compare. A stopped run is resumed; a failed one is reported as failed.

    Args:
        ask: Same as for `train`.

    Raises:
        Interrupted: If the process was asked to stop; the same comparison resumes.
        RunDirectoryError: If fewer than two contenders have a scored run.
    """
    contenders = [_permitted(contender, seeds, folder, ask=ask, say=progress.say) for contender in contenders]
    runs: dict[str, list[ContenderRun]] = {contender.name: [] for contender in contenders}
    for seed in seeds:  # seed by seed, so that a comparison that was stopped has whole pairs
        for contender in contenders:
            runs[contender.name].append(run_contender(contender, seed, folder=folder, progress=progress))
    outcomes = {
        name: {run.seed: final_task_outcomes(run.folder) for run in ran if run.failed is None}
        for name, ran in runs.items()
    }
    why = [f"{name}, seed {run.seed}: {run.failed}" for name, ran in runs.items() for run in ran if run.failed]
    done = {name: outcome for name, outcome in outcomes.items() if outcome}
    if len(done) < 2:
        raise RunDirectoryError(f"fewer than two contenders finished: {'; '.join(why)}")
    try:
        return ComparisonResult(runs, compare_pairs(done), dict(budget))
    except ValueError as error:
        raise RunDirectoryError(f"{error}: one of them has no scored episode") from None


def _permitted(
    contender: Contender, seeds: Sequence[int], folder: Path, *, ask: Ask | None, say: Callable[[str], None]
) -> Contender:
    """Return a contender with permission for the real calls of its runs that are missing.

    Raises:
        RecipeError: Nothing permits them.
    """
    missing = [seed for seed in seeds if not _is_over(_folder_of(contender, seed, folder))]
    resolved = contender.resolved
    if missing:
        prefix = f"{contender.name}, {len(missing)} runs"
        parts = training_parts(resolved) * len(missing)
        resolved = permit_run(resolved, parts, ask=ask, log=lambda line: say(f"{prefix}: {line}"))
    return replace(contender, resolved=resolved)


def _folder_of(contender: Contender, seed: int, folder: Path) -> Path:
    """Return the run directory of a contender with a seed, whether it exists or not."""
    return folder / "runs" / f"{_slug(contender.name)}-{run_key(contender.resolved.with_changes({'seed': seed}))}"


def _is_over(run_dir: Path) -> bool:
    return (run_dir / "summary.json").is_file() or (run_dir / "failed.txt").is_file()


def run_contender(
    contender: Contender, seed: int, *, folder: Path, progress: Progress, warm_up: Resolved | None = None
) -> ContenderRun:
    """Return the run of a contender with a seed: the finished one, or train it.

    The error of a failed run is stored in its folder; delete the folder to try again.

    Args:
        warm_up: Recipe that is trained first, once per seed. The contender starts with its weights and without a
            supervised stage, unless it has no such stage. None: each run trains its own warm-up, or reuses that of
            another run with the same settings.

    Raises:
        Interrupted: If the process was asked to stop; the run is saved.
        WhetstoneError: If the warm-up fails, or the run fails for a reason other than the method.
    """
    runs = folder / "runs"
    resolved = contender.resolved.with_changes({"seed": seed})
    if warm_up is not None and resolved.recipe.supervised is not None:
        began = _checkpoint_of(warm_up.with_changes({"seed": seed}), runs, seed, progress)
        run_dir = runs / f"{_slug(contender.name)}-{_short_hash(run_key(resolved) + began.parent.parent.name)}"
        resolved = resolved.with_changes({"policy.tiny": None, "policy.path": str(began), "supervised": None})
    else:
        run_dir = _folder_of(contender, seed, folder)
    failure = run_dir / "failed.txt"
    if failure.is_file():
        return ContenderRun(seed, run_dir, {}, True, failure.read_text(encoding="utf-8").strip())
    summary = read_json(run_dir / "summary.json")
    if summary is not None:
        return ContenderRun(seed, run_dir, summary, True)
    progress.say(f"{contender.name}, seed {seed}  ({run_dir})")
    other_runs = sorted(path for path in runs.glob("*") if path != run_dir)
    try:
        resumed = (run_dir / "recipe.yaml").is_file()
        return ContenderRun(
            seed,
            run_dir,
            train(resolved, run_dir, resume=resumed, progress=progress, reuse_from=other_runs).written,
            False,
        )
    except _OF_THE_METHOD as error:
        progress.say(f"{contender.name}, seed {seed}: failed: {error}")
        write_text(failure, f"{error}\n")
        return ContenderRun(seed, run_dir, {}, False, str(error))


def _checkpoint_of(warm_up: Resolved, runs: Path, seed: int, progress: Progress) -> Path:
    """Return the checkpoint of the warm-up with a seed; train the warm-up if it is missing."""
    run_dir = runs / f"warm-up-{run_key(warm_up)}"
    if not (run_dir / "summary.json").is_file():
        progress.say(f"warm-up, seed {seed}  ({run_dir})")
        train(warm_up, run_dir, resume=(run_dir / "recipe.yaml").is_file(), progress=progress)
    checkpoint = latest_checkpoint(run_dir)
    if checkpoint is None:
        raise RunDirectoryError(f"{run_dir}: the warm-up's checkpoint is missing; delete the folder to train it again")
    return checkpoint


def run_key(resolved: Resolved) -> str:
    """Hash recipe, package version, custom code and initial weights of a run; finished runs are found by this hash.

    Empty recipe keys are not hashed, so that a key of a later release does not change the hash of an older recipe.
    """
    permitted = resolved.recipe.environment.allow_effects is not None  # has no effect on results
    written = (resolved.with_changes({"environment.allow_effects": None}) if permitted else resolved).dump()
    written = _EMPTY.sub("", written)
    digest = hashlib.sha256(written.encode())
    digest.update(get_package_version().encode())
    read = set()
    for module in sorted(set(_NAMED.findall(written))):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            digest.update(Path(spec.origin).read_bytes())
            read.add(Path(spec.origin).resolve())
    for file in sorted(set(find_custom_code(resolved)) - read):  # imports of the named modules
        digest.update(file.read_bytes())
    for key, value in find_decisive_variables(resolved.keys).items():
        digest.update(f"{key} {value}".encode())
    path = resolved.recipe.policy.path
    for file in sorted(Path(path).glob("*")) if path is not None else ():
        if file.is_file():
            digest.update(f"{file.name} {file.stat().st_size}".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def learning_curve(folder: Path, unit: str) -> tuple[list[float], list[float]]:
    """Return the learning curve of a run as (costs so far, success rates).

    Evaluations during training are used if there are any, otherwise the training episodes.

    Args:
        folder: Run directory.
        unit: Unit of the cost, such as `episodes` or `sampled_tokens`.
    """
    rows = [row for row in Journal(folder).read() if row["stage"] == "reinforcement"]
    cumulative = list(itertools.accumulate(compute_spending([row])[unit] for row in rows))
    summary = read_json(folder / "summary.json") or {}
    during = {int(step): points["success"] for step, points in (summary.get("during") or {}).items()}
    if during:
        x = [0.0, *(cumulative[step - 1] for step in sorted(during) if step <= len(cumulative))]
        y = [_start_of(summary), *(during[step] for step in sorted(during) if step <= len(cumulative))]
        return x, y
    points = [
        (x, row["episode/success"])
        for x, row in zip(cumulative, rows, strict=True)
        if row.get("episode/success") is not None
    ]
    return [x for x, _ in points], [y for _, y in points]


def _start_of(summary: Mapping[str, Any]) -> float:
    """Return the success rate at the start of reinforcement, the last stage of a contender."""
    return float(read_stage_results(summary)[-1].before["success"])


def stage_cost(folder: Path) -> dict[str, float]:
    """Return the cost of a run's reinforcement stage by unit."""
    return compute_spending(Journal(folder).read())


def final_task_outcomes(folder: Path) -> Mapping[str, float]:
    """Return the fraction of scored episodes that succeeded at the end, by task id."""
    return read_task_outcomes(folder / "trajectories" / "evaluation-reinforcement.jsonl")


def count_timeouts(folder: Path) -> int:
    """Count the episodes of a run's reinforcement and final evaluation that timed out.

    If the machine was suspended, these timeouts are caused by the machine, not by the contender.
    """
    trained: int = sum(
        round(row.get("end_reason/timeout", 0.0) * row["cost_per_step/episodes"])
        for row in Journal(folder).read()
        if row["stage"] == "reinforcement"
    )
    judged = read_trajectories(folder / "trajectories" / "evaluation-reinforcement.jsonl")
    return trained + sum(trajectory.ended is EndReason.TIMEOUT for trajectory in judged)


def check_same_tasks(contenders: Sequence[Contender]) -> None:
    """Check that all contenders are evaluated on the same tasks.

    Raises:
        RecipeError: If held-out tasks or the sampling of answers differ.
    """
    first: tuple[Contender, list[str], Any] | None = None
    for contender in contenders:
        recipe = contender.resolved.recipe
        source, _, _ = build_scoring_components(contender.resolved)
        tasks = [task.id for task in source.held_out(recipe.evaluation.episodes)]
        how = (recipe.evaluation.samples, recipe.evaluation.temperature)
        if first is None:
            first = (contender, tasks, how)
        elif tasks != first[1]:
            problem = f"{first[0].name} and {contender.name} are evaluated on different tasks; use the same tasks"
            raise RecipeError(problem)
        elif how != first[2]:
            problem = f"{first[0].name} and {contender.name} differ in evaluation.samples or evaluation.temperature"
            raise RecipeError(problem)


def _label(key: str, value: str) -> str:
    return f"{key.rpartition('.')[2]}={value}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-")[:60]
