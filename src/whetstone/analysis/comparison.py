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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from whetstone.assembly.assembly import Assembly, assemble, judged_parts
from whetstone.errors import RecipeError, RunDirectoryError, WhetstoneError
from whetstone.evaluation.comparing import Paired, paired
from whetstone.extras import release
from whetstone.recipe import Recipe, Resolved, load_recipe
from whetstone.record.run_directory import read_json
from whetstone.reporting import Journal, Progress, read_trajectories
from whetstone.training.budget import UNITS, spent_in
from whetstone.training.run import train

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
    reused: bool
    """Whether it was there already."""


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
        for name, runs in self.runs.items():
            after = [run.summary["after"] for run in runs]
            success = [one["success"] for one in after]
            rows.append(
                {
                    "name": name,
                    "seeds": [run.seed for run in runs],
                    "success": success,
                    "mean": fmean(success),
                    "deviation": stdev(success) if len(success) > 1 else math.nan,
                    "before": fmean(run.summary["before"]["success"] for run in runs),
                    "reward": fmean(one["reward"] for one in after),
                    "turns": fmean(one["turns"] for one in after),
                    "tool_calls": fmean(one["tool_calls"] for one in after),
                    "tokens": fmean(one["action_tokens"] for one in after),
                    "invalid": sum(one["invalid"] for one in after),
                    "spent": {unit: fmean(spent(run.folder)[unit] for run in runs) for unit in UNITS},
                    "folders": [str(run.folder) for run in runs],
                    "reused": sum(run.reused for run in runs),
                }
            )
        return {"budget": dict(self.budget), "contenders": rows, "pairs": [asdict(pair) for pair in self.pairs]}


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
    limits = [
        f"reinforcement.budget.{unit}={most if unit == 'seconds' else int(most)}" for unit, most in budget.items()
    ]
    found: dict[str, Contender] = {}
    for recipe in recipes:
        for chosen in itertools.product(*axes):
            changes = [f"{key}={value}" for key, value in chosen]
            resolved = load_recipe(recipe, [*fixed, *changes, "ablations=null", *limits])
            if resolved.recipe.reinforcement is None:
                raise RecipeError(f"{recipe}: there is no reinforcement to compare (training is not set)")
            resolved = _laid_out(resolved)
            parts = [Path(recipe).stem] if len(set(recipes)) > 1 or not changes else []
            name = " ".join([*parts, *(_told(key, value) for key, value in chosen)])
            if name in found:
                raise RecipeError(f"{name} is named twice; compare what differs")
            found[name] = Contender(name, resolved)
    if len(found) < 2:
        raise RecipeError(
            "compare two or more: name several recipes, or values of a key, such as advantage=group_relative,gigpo"
        )
    _same_tasks(list(found.values()))
    return list(found.values())


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
            made.append(assemble(contender.resolved, like[0].policy if like else None))
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
) -> ComparisonResult:
    """Run what is not there yet, and compare. A run that was stopped goes on.

    Raises:
        Interrupted: The process was asked to stop; the same comparison goes on.
        WhetstoneError: As `train`.
    """
    runs: dict[str, list[ContenderRun]] = {contender.name: [] for contender in contenders}
    for seed in seeds:  # seed by seed, so that a comparison that was stopped has whole pairs
        for contender in contenders:
            resolved = contender.resolved.with_changes({"seed": seed})
            there = folder / "runs" / f"{_slug(contender.name)}-{key_of(resolved)}"
            summary = read_json(there / "summary.json")
            reused = summary is not None
            if summary is None:
                progress.say(f"{contender.name}, seed {seed}  ({there})")
                made = sorted(path for path in (folder / "runs").glob("*") if path != there)
                resumed = (there / "recipe.yaml").is_file()
                summary = train(resolved, there, resume=resumed, progress=progress, reuse_from=made).written
            runs[contender.name].append(ContenderRun(seed, there, summary, reused))
    outcomes = {name: {run.seed: _outcomes(run.folder) for run in ran} for name, ran in runs.items()}
    try:
        return ComparisonResult(runs, paired(outcomes), dict(budget))
    except ValueError as error:
        raise RunDirectoryError(f"{error}: in one of them nothing could be scored") from None


def key_of(resolved: Resolved) -> str:
    """Names a run by all that decides it: recipe, version, and the code and weights it names."""
    written = resolved.dump()
    found = hashlib.sha256(written.encode())
    found.update(release().encode())
    for module in sorted(set(_NAMED.findall(written))):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found.update(Path(spec.origin).read_bytes())
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
        y = [_before(summary), *(during[step] for step in sorted(during) if step <= len(cumulative))]
        return x, y
    told = [
        (x, row["episode/success"])
        for x, row in zip(cumulative, rows, strict=True)
        if row.get("episode/success") is not None
    ]
    return [x for x, _ in told], [y for _, y in told]


def _before(summary: Mapping[str, Any]) -> float:
    evaluations = summary["evaluations"]
    return float(evaluations.get("supervised", evaluations["untrained"])["success"])


def spent(folder: Path) -> dict[str, float]:
    """What a run's reinforcement spent."""
    return spent_in(Journal(folder).read())


def _outcomes(folder: Path) -> Mapping[str, float]:
    """By task, the share of valid episodes that succeeded in the end."""
    by_task: dict[str, list[bool]] = {}
    for trajectory in read_trajectories(folder / "trajectories" / "evaluation-reinforcement.jsonl"):
        if trajectory.score is not None:
            by_task.setdefault(trajectory.task_id, []).append(trajectory.solved)
    return {task: fmean(outcomes) for task, outcomes in by_task.items()}


def _same_tasks(contenders: Sequence[Contender]) -> None:
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


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-")[:60]
