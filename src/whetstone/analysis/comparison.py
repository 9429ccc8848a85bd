"""How are methods compared? Each with the same tasks, budget and seeds, in a folder of its own, paired in the end.

    contenders × seeds → (those that were run before are taken as they are) → train → outcomes by seed and task → paired

A run is kept under a name made of all that decides it: its recipe, its seed, the package's version and the code it
names. So adding a contender runs one contender, and changing one runs that one again.
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

from whetstone.assembly.assembly import Assembly, assemble, judged_parts
from whetstone.atomic_write import write_text
from whetstone.errors import (
    CreditError,
    FaultBudgetError,
    MismatchError,
    NonFiniteError,
    PromptTooLong,
    QuotaError,
    RecipeError,
    RunDirectoryError,
    WhetstoneError,
)
from whetstone.evaluation.comparing import Paired, paired, student
from whetstone.evaluation.stage_results import (
    Difference,
    StageResult,
    last_evaluation,
    read_stage_results,
    untrained_of,
)
from whetstone.extras import release
from whetstone.recipe import Recipe, Resolved, load_recipe
from whetstone.recipe.variables import decisive_variables
from whetstone.record import latest_checkpoint, read_json
from whetstone.record.custom_code import find_custom_code
from whetstone.reporting import Journal, Progress, read_trajectories
from whetstone.reporting.trajectories import read_task_outcomes
from whetstone.training.budget import UNITS, spent_in
from whetstone.training.permission import Ask, permit_run, training_parts
from whetstone.training.run import train
from whetstone.trajectory import EndReason

_OF_THE_METHOD = (CreditError, FaultBudgetError, MismatchError, NonFiniteError, PromptTooLong, QuotaError)
"""What a method can bring upon itself, unlike a full disk or a wrong recipe."""
_EMPTY = re.compile(r"^\w+: \[\]\n", re.MULTILINE)
_NAMED = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Contender:
    """A recipe with a name of its own among those it is compared with."""

    name: str
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class ContenderRun:
    """One run of a contender."""

    seed: int
    folder: Path
    summary: Mapping[str, Any]
    """Empty where the run failed."""
    reused: bool
    """Whether it was there already."""
    failed: str | None = None
    """Why it came to no end."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What a comparison came to."""

    runs: Mapping[str, Sequence[ContenderRun]]
    """By contender."""
    pairs: Sequence[Paired]
    budget: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
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
                    "spent": {unit: _mean([spent(run.folder)[unit] for run in runs]) for unit in UNITS},
                    "folders": [str(run.folder) for run in every],
                    "reused": sum(run.reused for run in every),
                }
            )
        return {"budget": dict(self.budget), "contenders": rows, "pairs": [asdict(pair) for pair in self.pairs]}


def change_over_seeds(results: Sequence[StageResult]) -> Difference:
    """Compare the ends of the last stage with its starts over the runs of a contender.

    The interval is Student's over seeds, and at least as wide as the uncertainty over tasks of the mean of the runs:
    two seeds with equal differences do not show that there is no scatter. With one seed it is that of the run.
    """
    differences = [result.difference for result in results if not math.isnan(result.difference.mean)]
    if len(differences) < 2:
        return differences[0] if differences else Difference(math.nan, (math.nan, math.nan))
    count, mean = len(differences), fmean(each.mean for each in differences)
    low, high, _ = student([each.mean for each in differences])
    below = math.hypot(*(each.mean - each.interval[0] for each in differences)) / count
    above = math.hypot(*(each.interval[1] - each.mean for each in differences)) / count
    return Difference(mean, (min(low, mean - below), max(high, mean + above)))


def _mean(values: Sequence[float]) -> float:
    """NaN of none."""
    return fmean(values) if values else math.nan


def contenders_of(recipes: Sequence[str], overrides: Sequence[str], *, budget: Mapping[str, float]) -> list[Contender]:
    """Every recipe with every combination of swept values.

    Args:
        overrides: `key=value`, or `key=one,two,…`, which sweeps.
        budget: By unit, what each may spend; laid over whatever the recipes say.

    Raises:
        RecipeError: A recipe or key is wrong, two contenders are the same, there is only one, or they have other tasks.
    """
    axes: list[list[tuple[str, str]]] = []
    fixed: list[str] = []
    for override in overrides:
        key, _, text = override.partition("=")
        values = swept(text)
        if key == "seed" and len(values) > 1:
            raise RecipeError("seed: every contender is run with each of several seeds; --seeds says how many")
        if len(values) > 1:
            axes.append([(key, value) for value in values])
        else:
            fixed.append(override)
    found: dict[str, Contender] = {}
    for recipe in recipes:
        for chosen in itertools.product(*axes):
            changes = [f"{key}={value}" for key, value in chosen]
            resolved = within_budget(load_recipe(recipe, [*fixed, *changes]), budget)
            parts = [Path(recipe).stem] if len(set(recipes)) > 1 or not changes else []
            name = " ".join([*parts, *(_told(key, value) for key, value in chosen)])
            if name in found:
                raise RecipeError(f"{name} is named twice; compare what differs")
            found[name] = Contender(name, resolved)
    if len(found) < 2:
        raise RecipeError(
            "compare two or more: name several recipes, or values of a key, such as advantage=group_relative,gigpo"
        )
    check_same_tasks(list(found.values()))
    return list(found.values())


def within_budget(resolved: Resolved, budget: Mapping[str, float]) -> Resolved:
    """A recipe as it is compared: without ablations, and with no more than this to spend.

    Args:
        budget: By unit, what it may spend; laid over whatever the recipe says.

    Raises:
        RecipeError: It has no reinforcement.
    """
    if resolved.recipe.reinforcement is None:
        raise RecipeError(f"{resolved.name}: there is no reinforcement to compare (reinforcement is not set)")
    limits = {f"reinforcement.budget.{u}": most if u == "seconds" else int(most) for u, most in budget.items()}
    return _laid_out(resolved.with_changes({"ablations": None, **limits}))


def _laid_out(resolved: Resolved) -> Resolved:
    """The recipe with no more steps than its episodes pay for, so that whatever is laid out over steps (curricula,
    horizons) is laid out over those it makes."""
    reinforcement, rollout = resolved.recipe.reinforcement, resolved.recipe.rollout
    if reinforcement is None or reinforcement.budget is None or reinforcement.budget.episodes is None:
        return resolved
    steps = math.ceil(reinforcement.budget.episodes / (reinforcement.tasks_per_step * rollout.group_size))
    return resolved.with_changes({"reinforcement.steps": steps}) if steps < reinforcement.steps else resolved


def check_contenders(contenders: Sequence[Contender]) -> None:
    """See that every contender can be made, before the first is run.

    Raises:
        WhetstoneError: One cannot; the message says which.
    """
    made: list[Assembly] = []
    for contender in contenders:
        recipe = contender.resolved.recipe
        like = [a for a in made if _same_policy(a.resolved.recipe, recipe)]
        try:
            made.append(assemble(contender.resolved, like[0].policy if like else None).check())
        except WhetstoneError as error:
            raise type(error)(f"{contender.name}: {error}") from None


def _same_policy(one: Recipe, other: Recipe) -> bool:
    return (one.policy, one.chat, one.tasks, one.critic) == (other.policy, other.chat, other.tasks, other.critic)


def swept(text: str) -> list[str]:
    """The values of `one,two,three`; commas in brackets and quotes part nothing.

    >>> swept("gigpo,{name: rloo, scale: true},[a, b]"), swept("")
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
    """Run what is not there yet, and compare. A run that was stopped goes on; one that failed is shown as failed.

    Args:
        ask: Same as for `train`.

    Raises:
        Interrupted: The process was asked to stop; the same comparison goes on.
        RunDirectoryError: No two contenders have a run that could be scored.
    """
    contenders = [_permitted(contender, seeds, folder, ask=ask, say=progress.say) for contender in contenders]
    runs: dict[str, list[ContenderRun]] = {contender.name: [] for contender in contenders}
    for seed in seeds:  # seed by seed, so that a comparison that was stopped has whole pairs
        for contender in contenders:
            runs[contender.name].append(run_of(contender, seed, folder=folder, progress=progress))
    outcomes = {
        name: {run.seed: outcomes_of(run.folder) for run in ran if run.failed is None} for name, ran in runs.items()
    }
    why = [f"{name}, seed {run.seed}: {run.failed}" for name, ran in runs.items() for run in ran if run.failed]
    done = {name: found for name, found in outcomes.items() if found}
    if len(done) < 2:
        raise RunDirectoryError(f"fewer than two contenders came to an end: {'; '.join(why)}")
    try:
        return ComparisonResult(runs, paired(done), dict(budget))
    except ValueError as error:
        raise RunDirectoryError(f"{error}: in one of them nothing could be scored") from None


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
    """Return the run directory of a contender with a seed."""
    return folder / "runs" / f"{_slug(contender.name)}-{key_of(contender.resolved.with_changes({'seed': seed}))}"


def _is_over(run_dir: Path) -> bool:
    return (run_dir / "summary.json").is_file() or (run_dir / "failed.txt").is_file()


def run_of(
    contender: Contender, seed: int, *, folder: Path, progress: Progress, warm_up: Resolved | None = None
) -> ContenderRun:
    """The run of a contender with a seed: the one that is there, or trained now. Why one failed is kept in its folder,
    which is all there is to delete for another try.

    Args:
        warm_up: What is trained first, once for each seed; the contender begins with its weights in the place of its
            policy and supervised stage, unless it has taken that stage out. None: each makes its own, or takes that
            of a run that has made the same.

    Raises:
        Interrupted: The process was asked to stop; the run is saved.
        WhetstoneError: The warm-up failed, or what is no fault of the method's stopped the run.
    """
    runs = folder / "runs"
    resolved = contender.resolved.with_changes({"seed": seed})
    if warm_up is not None and resolved.recipe.supervised is not None:
        began = _checkpoint_of(warm_up.with_changes({"seed": seed}), runs, seed, progress)
        there = runs / f"{_slug(contender.name)}-{_short(key_of(resolved) + began.parent.parent.name)}"
        resolved = resolved.with_changes({"policy.tiny": None, "policy.path": str(began), "supervised": None})
    else:
        there = _folder_of(contender, seed, folder)
    failure = there / "failed.txt"
    if failure.is_file():
        return ContenderRun(seed, there, {}, True, failure.read_text(encoding="utf-8").strip())
    summary = read_json(there / "summary.json")
    if summary is not None:
        return ContenderRun(seed, there, summary, True)
    progress.say(f"{contender.name}, seed {seed}  ({there})")
    made = sorted(path for path in runs.glob("*") if path != there)
    try:
        resumed = (there / "recipe.yaml").is_file()
        return ContenderRun(
            seed, there, train(resolved, there, resume=resumed, progress=progress, reuse_from=made).written, False
        )
    except _OF_THE_METHOD as error:
        progress.say(f"{contender.name}, seed {seed}: failed: {error}")
        write_text(failure, f"{error}\n")
        return ContenderRun(seed, there, {}, False, str(error))


def _checkpoint_of(warm_up: Resolved, runs: Path, seed: int, progress: Progress) -> Path:
    """The weights behind a warm-up, trained where they are not there."""
    there = runs / f"warm-up-{key_of(warm_up)}"
    if not (there / "summary.json").is_file():
        progress.say(f"warm-up, seed {seed}  ({there})")
        train(warm_up, there, resume=(there / "recipe.yaml").is_file(), progress=progress)
    found = latest_checkpoint(there)
    if found is None:
        raise RunDirectoryError(f"{there}: the warm-up's checkpoint is gone; delete the folder to make it again")
    return found


def key_of(resolved: Resolved) -> str:
    """Names a run by all that decides it: recipe, version, and the code and weights it names. Keys that are empty are
    left out, so that a key that came later makes no older result another's."""
    permitted = resolved.recipe.environment.allow_effects is not None  # which decides nothing
    written = (resolved.with_changes({"environment.allow_effects": None}) if permitted else resolved).dump()
    written = _EMPTY.sub("", written)
    found = hashlib.sha256(written.encode())
    found.update(release().encode())
    read = set()
    for module in sorted(set(_NAMED.findall(written))):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found.update(Path(spec.origin).read_bytes())
            read.add(Path(spec.origin).resolve())
    for file in sorted(set(find_custom_code(resolved)) - read):  # imports of the named modules
        found.update(file.read_bytes())
    for key, value in decisive_variables(resolved.keys).items():
        found.update(f"{key} {value}".encode())
    path = resolved.recipe.policy.path
    for file in sorted(Path(path).glob("*")) if path is not None else ():
        if file.is_file():
            found.update(f"{file.name} {file.stat().st_size}".encode())
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def learning_curve(folder: Path, unit: str) -> tuple[list[float], list[float]]:
    """(what was spent, success then): of evaluations beside training where there were some, else of its episodes."""
    rows = [row for row in Journal(folder).read() if row["stage"] == "reinforcement"]
    cumulative = list(itertools.accumulate(spent_in([row])[unit] for row in rows))
    summary = read_json(folder / "summary.json") or {}
    during = {int(step): told["success"] for step, told in (summary.get("during") or {}).items()}
    if during:
        x = [0.0, *(cumulative[step - 1] for step in sorted(during) if step <= len(cumulative))]
        y = [_start_of(summary), *(during[step] for step in sorted(during) if step <= len(cumulative))]
        return x, y
    told = [
        (x, row["episode/success"])
        for x, row in zip(cumulative, rows, strict=True)
        if row.get("episode/success") is not None
    ]
    return [x for x, _ in told], [y for _, y in told]


def _start_of(summary: Mapping[str, Any]) -> float:
    """Success at the start of reinforcement, the last stage of a contender."""
    return float(read_stage_results(summary)[-1].before["success"])


def spent(folder: Path) -> dict[str, float]:
    """What a run's reinforcement spent."""
    return spent_in(Journal(folder).read())


def outcomes_of(folder: Path) -> Mapping[str, float]:
    """Return the fraction of scored episodes that succeeded at the end, by task id."""
    return read_task_outcomes(folder / "trajectories" / "evaluation-reinforcement.jsonl")


def timed_out(folder: Path) -> int:
    """How many episodes of a run's reinforcement, and of the evaluation behind it, passed their deadline.

    Where a machine was suspended for as long, they say something about the machine and nothing about the contender.
    """
    trained: int = sum(
        round(row.get("end_reason/timeout", 0.0) * row["cost_per_step/episodes"])
        for row in Journal(folder).read()
        if row["stage"] == "reinforcement"
    )
    judged = read_trajectories(folder / "trajectories" / "evaluation-reinforcement.jsonl")
    return trained + sum(trajectory.ended is EndReason.TIMEOUT for trajectory in judged)


def check_same_tasks(contenders: Sequence[Contender]) -> None:
    """Refuse what would compare success on different tasks.

    Raises:
        RecipeError: Two have other held-out tasks, or draw their answers differently.
    """
    first: tuple[Contender, list[str], Any] | None = None
    for contender in contenders:
        recipe = contender.resolved.recipe
        source, _, _ = judged_parts(contender.resolved)
        tasks = [task.id for task in source.held_out(recipe.evaluation.episodes)]
        how = (recipe.evaluation.samples, recipe.evaluation.temperature)
        if first is None:
            first = (contender, tasks, how)
        elif tasks != first[1]:
            said = f"{first[0].name} and {contender.name} are evaluated on other tasks; set tasks alike"
            raise RecipeError(said)
        elif how != first[2]:
            said = f"{first[0].name} and {contender.name} differ in evaluation.samples or evaluation.temperature"
            raise RecipeError(said)


def _told(key: str, value: str) -> str:
    return f"{key.rpartition('.')[2]}={value}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-")[:60]
