"""Measure what reinforcement gains after the supervised stage, per recipe and seed.

Each run trains the supervised stage as the recipe has it and then reinforcement with default settings. Greedy success
on the same test tasks before and after reinforcement is compared task by task.

Defaults:
    The keys of `reinforcement` that Whetstone can choose (`OPTIMIZER_KEYS`) are removed from the recipe, so they have
    their defaults; `--shipped` keeps them. The numbers of steps, tasks and episodes are those of the recipe.

Resuming:
    A run is a directory `FOLDER/NAME/RECIPE-SEED`, its result `FOLDER/NAME/RECIPE-SEED.json`. A stopped run continues,
    and a run with a result is not repeated. Variants (`--name`) share the supervised stage.

Example:
    python -m benchmarks reinforcement_gain --folder gains --recipes guessing,demo --seeds 0,1 --budget 600
    python -m benchmarks reinforcement_gain --folder gains --name adamw reinforcement.optimizer=adamw
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from circumstances import circumstances
from episode_files import successes_by_task
from whetstone.errors import WhetstoneError
from whetstone.recipe import Resolved, load_recipe
from whetstone.record import latest_checkpoint, load_checkpoint
from whetstone.reporting import Progress
from whetstone.training import EvaluatedAgent, EvaluationRecord, evaluate_agent, train

OPTIMIZER_KEYS = ("optimizer", "learning_rate", "full_rate_groups", "warmup_fraction", "decay_fraction", "decay")
"""Keys of `reinforcement` that have a default for each policy."""
_HIGHEST = 30
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "raw" / "reinforcement_gain.json"


sys.path.insert(0, str(ROOT / "examples"))
own_environment: Any = importlib.import_module("own_environment")


class Guess(own_environment.Guess):  # type: ignore[misc]
    """The environment of the example with more numbers, so that demonstrations do not solve all of it."""

    highest = _HIGHEST


class Numbers(own_environment.Numbers):  # type: ignore[misc]
    """Numbers to find."""

    highest = _HIGHEST


_GUESSING = {
    "policy": {
        "tiny": {
            "vocab_size": 300, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128,
            "context_length": 128,
        }
    },
    "chat": {"format": "compact"},
    "tasks": {"source": Numbers},
    "environment": {"name": Guess, "actions": "text", "max_turns": 6},
    "reward": "verdict",
    "supervised": {"steps": 60, "optimizer": "muon", "learning_rate": 1.0e-2},
    "rollout": {"group_size": 8, "max_new_tokens": 4},
    "reinforcement": {"steps": 100, "tasks_per_step": 32, "optimizer": "muon", "learning_rate": 2.0e-3},
}  # fmt: skip
RECIPES: dict[str, Any] = {
    "guessing": _GUESSING,
    **{
        name: name
        for name in (
            "demo", "bargaining", "frozen-lake", "gsm8k-tiny", "multi-hop-search", "support", "text-to-sql",
            "textworld", "twenty-questions", "web-shop",
        )
    },
}  # fmt: skip
_SELECTION = {"reinforcement.keep": "best", "reinforcement.checkpoint_interval_steps": 10}
_CHANGES = {"textworld": {"tasks.games": 8000}}
"""Changes without effect on training settings: 3,000 games hold out 284, too few for test and validation."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Result of one run. Fractions of test tasks, unless stated otherwise."""

    recipe: str
    seed: int
    tasks: int
    """Number of test tasks."""
    start: float
    """Success before reinforcement."""
    last: float
    """Success of the last checkpoint."""
    low: float
    """Lower end of the 95 % interval of `last` - `start`, paired by task."""
    high: float
    best: float | None
    """Success of the checkpoint that `keep: best` selects; None if the run selects none."""
    seconds: float
    """Training time of both stages."""
    noise_scale: float | None
    """Lower end of the last gradient noise scale, in groups (`update/noise_scale_min`); None without measurements."""
    batch: int
    """Groups per update."""


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Compute Student's 95 % interval of the mean of paired differences.

    >>> low, high = paired_interval([1.0, 0.0, 0.0, -1.0])
    >>> round(low, 3), round(high, 3)
    (-1.299, 1.299)
    """
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return -math.inf, math.inf
    half = float(t.ppf(0.975, count - 1)) * stdev(differences) / math.sqrt(count)
    return mean - half, mean + half


def solved(path: Path) -> dict[str, float]:
    """Return the success on each task in a file of episodes."""
    return {task: fmean(each) for task, each in successes_by_task(path).items()}


def recipe_of(name: str, seed: int, *, episodes: int, shipped: bool, changes: Sequence[str]) -> Resolved:
    """Load a recipe with default settings of reinforcement, or those it ships."""
    loaded = load_recipe(RECIPES[name])
    keys = loaded.keys["reinforcement"]
    unset = {} if shipped else {f"reinforcement.{key}": None for key in OPTIMIZER_KEYS if key in keys}
    fixed = {"seed": seed, "ablations": None, "evaluation.episodes": episodes, **_SELECTION, **_CHANGES.get(name, {})}
    return loaded.with_changes({**unset, **fixed}).with_overrides(list(changes))


def run_one(name: str, seed: int, folder: Path, resolved: Resolved) -> Gain:
    """Train, or continue, one run and compare its evaluations.

    The run ends with the checkpoint that `keep: best` selects. The last checkpoint is evaluated on the same test tasks.
    """
    run_dir = folder / f"{name}-{seed}"
    others = [path for path in folder.parent.glob(f"*/{name}-{seed}") if path != run_dir]
    quiet = Progress(quiet=True)
    run = train(resolved, run_dir, resume=(run_dir / "recipe.yaml").is_file(), progress=quiet, reuse_from=others)
    before = solved(run_dir / "trajectories" / "evaluation-supervised.jsonl")
    best = solved(run_dir / "trajectories" / "evaluation-reinforcement.jsonl")
    selected, after = run.written["kept"], best
    if selected is not None and selected["step"] != selected["of"]:
        after = evaluate_last(resolved, run_dir)
    tasks = sorted(set(before) & set(after) & set(best))
    low, high = paired_interval([after[task] - before[task] for task in tasks])
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    scales = [row["update/noise_scale_min"] for row in rows if row.get("update/noise_scale_min") is not None]
    settings = resolved.recipe.reinforcement
    assert settings is not None
    return Gain(
        recipe=name,
        seed=seed,
        tasks=len(tasks),
        start=fmean(before[task] for task in tasks),
        last=fmean(after[task] for task in tasks),
        low=low,
        high=high,
        best=fmean(best[task] for task in tasks) if selected is not None else None,
        seconds=sum(run.seconds.values()),
        noise_scale=scales[-1] if scales else None,
        batch=settings.tasks_per_step // settings.minibatches,
    )


def evaluate_last(resolved: Resolved, run_dir: Path) -> dict[str, float]:
    """Return the success of a run's last checkpoint on each test task."""
    path, into = latest_checkpoint(run_dir), EvaluationRecord(run_dir / "last")
    assert path is not None
    policy, _, position = load_checkpoint(path)
    evaluate_agent(
        EvaluatedAgent(resolved, policy, position.memory), seed=None, record=into, progress=Progress(quiet=True)
    )
    return solved(into.folder / "trajectories.jsonl")


def table(gains: Sequence[Gain]) -> str:
    """Format results as Markdown, one row per run."""
    lines = [
        "| recipe | seed | tasks | start | last | gain (95 %, paired) | best | groups / noise scale | seconds |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for gain in gains:
        best = "–" if gain.best is None else f"{100 * gain.best:.1f} %"
        scale = "–" if gain.noise_scale is None else f"≥ {gain.noise_scale:.0f}"
        lines.append(
            f"| {gain.recipe} | {gain.seed} | {gain.tasks} | {100 * gain.start:.1f} % | {100 * gain.last:.1f} % "
            f"| {100 * (gain.last - gain.start):+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) "
            f"| {best} | {gain.batch} / {scale} | {gain.seconds:.0f} |"
        )
    return "\n".join(lines)


def by_recipe(gains: Sequence[Gain]) -> dict[str, tuple[float, float, float]]:
    """Compute the mean gain of each recipe and its 95 % interval: over seeds, or over tasks if there is one seed."""
    results = {}
    for name in dict.fromkeys(gain.recipe for gain in gains):
        runs = [gain for gain in gains if gain.recipe == name]
        gained = [gain.last - gain.start for gain in runs]
        low, high = paired_interval(gained) if len(runs) > 1 else (runs[0].low, runs[0].high)
        results[name] = (fmean(gained), low, high)
    return results


def summary(gains: Sequence[Gain]) -> str:
    """Format the means over seeds as Markdown, one row per recipe."""
    lines = ["| recipe | seeds | start | last | best | gain (95 %) |", "| --- | --: | --: | --: | --: | --: |"]
    for name, (gain, low, high) in by_recipe(gains).items():
        runs = [each for each in gains if each.recipe == name]
        start, last = fmean(each.start for each in runs), fmean(each.last for each in runs)
        selected = [each.best for each in runs if each.best is not None]
        best = f"{100 * fmean(selected):.1f} %" if selected else "–"
        lines.append(
            f"| {name} | {len(runs)} | {100 * start:.1f} % | {100 * last:.1f} % | {best} "
            f"| {100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) |"
        )
    return "\n".join(lines)


def page(gains: Sequence[Gain], skipped: Mapping[str, str], processor: str) -> str:
    """Format all results as a Markdown page."""
    lines = [
        "# Gain of reinforcement with default settings",
        "",
        "Greedy success on test tasks after the supervised stage of a recipe (start) and after its reinforcement (last "
        "checkpoint), both with the recipe's number of steps and episodes and the default optimizer settings. *best* "
        "is the checkpoint that `reinforcement.keep: best` selects on validation tasks. The recipe `guessing` is "
        f"`examples/own_environment.py` with numbers from 1 to {_HIGHEST}.",
        "",
        f"Made by `python -m benchmarks reinforcement_gain --write` on {processor}.",
        "",
        "## Mean over seeds",
        "",
        summary(gains),
        "",
        "## Each run",
        "",
        "The interval of a run is over tasks; tasks of `guessing` repeat 30 numbers, so its intervals are too narrow.",
        "",
        table(gains),
        *(f"\n`{name}` is not measured: {reason}." for name, reason in skipped.items()),
    ]
    return "\n".join(lines) + "\n"


def ratios_of(gains: Sequence[Gain]) -> dict[str, float]:
    """Compute the fraction of recipes that gain 5 points on average, and of those without a certain loss."""
    results = by_recipe(gains).values()
    count = max(1, len(results))
    gained, harmed = sum(gain >= 0.05 for gain, _, _ in results), sum(high < 0 for _, _, high in results)
    return {"gained": gained / count, "without_loss": 1 - harmed / count}


def main() -> None:
    """Run the missing runs and print all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="recipe keys that differ in this variant")
    parser.add_argument("--folder", type=Path, default=Path("gains"), help="directory of runs and results")
    parser.add_argument("--name", default="default", help="name of the variant")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--episodes", type=int, default=500, help="test tasks")
    parser.add_argument("--shipped", action="store_true", help="keep the optimizer settings of the recipes")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no new run starts")
    parser.add_argument("--write", action="store_true", help="store the result and its page in benchmarks/results")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    folder = arguments.folder / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    gains: list[Gain] = []
    skipped: dict[str, str] = {}
    for seed in [int(seed) for seed in arguments.seeds.split(",")]:
        for name in arguments.recipes.split(","):
            path = folder / f"{name}-{seed}.json"
            if path.is_file():
                gains.append(Gain(**json.loads(path.read_text())))
            elif name not in skipped and time.perf_counter() - began < arguments.budget:
                try:
                    resolved = recipe_of(
                        name, seed, episodes=arguments.episodes, shipped=arguments.shipped, changes=arguments.changes
                    )
                    gains.append(run_one(name, seed, folder, resolved))
                except WhetstoneError as error:  # data or a package is missing: the others are still measured
                    skipped[name] = str(error)
                    continue
                path.write_text(json.dumps(asdict(gains[-1]), indent=1) + "\n")
                if not arguments.json:
                    print(table(gains).splitlines()[-1], flush=True)
    gains.sort(key=lambda gain: (list(RECIPES).index(gain.recipe), gain.seed))
    measured = {"gains": [asdict(gain) for gain in gains], "skipped": skipped}
    report = {"name": "reinforcement_gain", "measured": measured, "ratios": ratios_of(gains)}
    report |= {"goal": "gained ≥ 0.7, without_loss = 1", **circumstances(began)}
    if arguments.write:
        RESULTS.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        (RESULTS.parents[1] / f"{RESULTS.stem}.md").write_text(
            page(gains, skipped, circumstances(began)["machine"]["processor"])
        )
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"\n{table(gains)}\n\n{summary(gains)}")
    for name, reason in skipped.items():
        print(f"{name}: not measured: {reason}")


if __name__ == "__main__":
    main()
