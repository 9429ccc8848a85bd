"""Measure what reinforcement gains on a pretrained model, against its start and against more supervised training.

Each seed trains the recipe `smollm2-tools`: a supervised stage on demonstrations of a cautious expert, then
reinforcement. The control continues the supervised stage on fresh demonstrations for as many seconds, with the learning
rate that is best on validation tasks, and ends with its best checkpoint on them. All are judged once on the same test
tasks.

Resuming:
    `FOLDER/SEED/` has one run per unit; a stopped unit continues and a finished one is not repeated. `--budget` ends
    the program before the next unit. Learning rates of the control are compared on the first seed only. `--write` adds
    the finished seeds to the stored ones, so that the seeds can be run on several days.

Example:
    python -m benchmarks smollm2_tools --folder flagship --seeds 0,1 --budget 2400
    python -m benchmarks smollm2_tools --folder flagship --write
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from circumstances import circumstances, processor
from episode_files import successes_by_task
from whetstone.assembly import assemble
from whetstone.evaluation.significance import t_interval
from whetstone.recipe import Resolved, load_recipe
from whetstone.record import load_checkpoint
from whetstone.record.checkpoint import checkpoint_path, checkpoints_in
from whetstone.reporting import Progress
from whetstone.reporting.charts import plot_bands
from whetstone.training import EvaluatedAgent, EvaluationRecord, evaluate_agent, train

ROOT = Path(__file__).parents[2]
RECIPE = "smollm2-tools"
TEST_TASKS, VALIDATION_TASKS = 200, 100
"""Held-out tasks: the first are test tasks, those after them select checkpoint and learning rate of the control."""
PASS_TASKS, PASS_SAMPLES = 100, 8
RESULTS = ROOT / "benchmarks" / "results" / "raw" / "smollm2_tools.json"
CONTROL_RATES = (1.0e-4, 3.0e-4, 1.0e-3)
_JUDGED_INTERVAL = 20
"""Updates between the checkpoints that are judged."""
_CONTROL_CHECKPOINTS = 4
_CONTROL_SEED = 1000
"""Added to the seed of the control, so that its demonstrations are of tasks that the supervised stage has not seen."""


def recipe_of(seed: int, changes: Sequence[str]) -> Resolved:
    """Load the recipe; the run's own evaluations are short, because `judge` repeats them on more tasks."""
    own = {"seed": seed, "evaluation.episodes": 12, "reinforcement.checkpoint_interval_steps": _JUDGED_INTERVAL}
    return load_recipe(RECIPE).with_changes(own).with_overrides(list(changes))


def evaluate(resolved: Resolved, checkpoint: Path, into: Path, changes: Mapping[str, Any]) -> dict[str, list[float]]:
    """Evaluate a checkpoint, or continue its evaluation, and return the success of each episode by task."""
    policy, _, position = load_checkpoint(checkpoint)
    agent = EvaluatedAgent(resolved.with_changes(dict(changes)), policy, position.memory)
    evaluate_agent(agent, seed=None, record=EvaluationRecord(into), progress=Progress(quiet=True))
    return successes_by_task(into / "trajectories.jsonl")


def judge(resolved: Resolved, run_dir: Path, step: int) -> tuple[float, float]:
    """Return greedy success of a checkpoint on test tasks and on validation tasks."""
    count = TEST_TASKS + VALIDATION_TASKS
    into = run_dir / f"greedy-{step}"
    solved = evaluate(resolved, checkpoint_path(run_dir, step), into, {"evaluation.episodes": count})
    tasks = [task.id for task in assemble(resolved).source.held_out(count)]
    each = [fmean(solved[task]) if task in solved else 0.0 for task in tasks]
    return fmean(each[:TEST_TASKS]), fmean(each[TEST_TASKS:])


def success_by_kind(resolved: Resolved, run_dir: Path, step: int) -> dict[str, float]:
    """Return greedy success of a judged checkpoint by kind of task, over test and validation tasks."""
    solved = successes_by_task(run_dir / f"greedy-{step}" / "trajectories.jsonl")
    by_kind: dict[str, list[float]] = {}
    for task in assemble(resolved).source.held_out(TEST_TASKS + VALIDATION_TASKS):
        by_kind.setdefault(task.tags["kind"], []).extend(solved.get(task.id, [0.0]))
    return {kind: fmean(each) for kind, each in by_kind.items()}


def sampled(resolved: Resolved, run_dir: Path, step: int) -> dict[str, float]:
    """Return success at temperature 1 and the fraction of tasks solved by at least one of the samples."""
    changes = {
        "evaluation.episodes": PASS_TASKS,
        "evaluation.samples": PASS_SAMPLES,
        "evaluation.temperature": 1.0,
    }
    solved = evaluate(resolved, checkpoint_path(run_dir, step), run_dir / f"sampled-{step}", changes)
    return {
        "sampled": fmean(fmean(each) for each in solved.values()),
        "pass": fmean(float(any(each)) for each in solved.values()),
    }


def steps_of(run_dir: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return [int(path.name.removeprefix("step-")) for path in checkpoints_in(run_dir)]


def rows_of(run_dir: Path, stage: str) -> list[dict[str, Any]]:
    """Return the rows of a stage in `metrics.jsonl`."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    return [row for row in rows if row["stage"] == stage]


def run_reinforcement(folder: Path, seed: int, changes: Sequence[str]) -> dict[str, Any]:
    """Train the recipe and judge its start, its last checkpoint and the one that validation tasks select."""
    run_dir, resolved = folder / "reinforcement", recipe_of(seed, changes)
    resume = (run_dir / "recipe.yaml").is_file()
    run = train(resolved, run_dir, resume=resume, progress=Progress(quiet=True))
    supervised, reinforcement = rows_of(run_dir, "supervised"), rows_of(run_dir, "reinforcement")
    start = len(supervised)
    curve = {step: judge(resolved, run_dir, step) for step in steps_of(run_dir) if step >= start}
    last = max(curve)
    selected = max(curve, key=lambda step: curve[step][1])
    first, final = sampled(resolved, run_dir, start), sampled(resolved, run_dir, last)
    return {
        "start": curve[start][0],
        "last": curve[last][0],
        "kept": curve[selected][0],
        "curve": [[step - start, *pair] for step, pair in sorted(curve.items())],
        "sampled_start": first["sampled"],
        "sampled_last": final["sampled"],
        "pass8_start": first["pass"],
        "pass8_last": final["pass"],
        "entropy_start": reinforcement[0]["policy/entropy"],
        "entropy_last": reinforcement[-1]["policy/entropy"],
        "success_of_steps": [row["episode/success"] for row in reinforcement],
        "seconds": run.seconds["reinforcement"],
        "threads": torch.get_num_threads(),
        "start_by_kind": success_by_kind(resolved, run_dir, start),
        "last_by_kind": success_by_kind(resolved, run_dir, last),
        "supervised_seconds": run.seconds["supervised"],
        "supervised_steps": start,
        "start_step": start,
    }


def run_control(folder: Path, seed: int, rate: float, unit: Mapping[str, Any], changes: Sequence[str]) -> Any:
    """Continue the supervised stage with fresh demonstrations for as long as reinforcement took."""
    run_dir = folder / f"control-{rate:g}"
    steps = max(1, round(unit["seconds"] / (unit["supervised_seconds"] / unit["supervised_steps"])))
    resolved = recipe_of(seed + _CONTROL_SEED, changes).with_changes(
        {
            "start_from": str(checkpoint_path(folder / "reinforcement", unit["start_step"])),
            **dict.fromkeys(("reinforcement", "advantage", "objective", "rollout.group_size")),
            "supervised.steps": steps,
            "supervised.learning_rate": rate,
            "supervised.checkpoint_interval_steps": math.ceil(steps / _CONTROL_CHECKPOINTS),
            "supervised.keep_last": _CONTROL_CHECKPOINTS + 1,
        }
    )
    run = train(resolved, run_dir, resume=(run_dir / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    curve = {step: judge(resolved, run_dir, step) for step in steps_of(run_dir) if step}
    best = max(curve, key=lambda step: curve[step][1])
    return {
        "rate": rate,
        "steps": steps,
        "seconds": sum(run.seconds.values()),
        "validation": curve[best][1],
        "control": curve[best][0],
        "curve": [[step, *pair] for step, pair in sorted(curve.items())],
    }


def finished(path: Path, make: Any) -> Any:
    """Return the stored result of a unit, or run it and store its result."""
    if not path.is_file():
        result = make()
        path.write_text(json.dumps(result, indent=1) + "\n")
    return json.loads(path.read_text())


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return mean and Student's 95 % interval over seeds; the interval of one seed is NaN."""
    low, high, _ = t_interval(differences)
    return fmean(differences), low, high


def run_seed(folder: Path, seed: int, rates: Sequence[float], deadline: float, changes: Sequence[str]) -> Any:
    """Run the missing units of a seed before the deadline; return its result, or None if units are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Any] = []
    units: list[tuple[str, Any]] = [("reinforcement", lambda: run_reinforcement(folder, seed, changes))]
    units += [
        (f"control-{rate:g}", lambda rate=rate: run_control(folder, seed, rate, results[0], changes)) for rate in rates
    ]
    for name, make in units:
        path = folder / f"{name}.json"
        if not path.is_file() and time.monotonic() > deadline:
            return None
        results.append(finished(path, make))
        print(
            f"seed {seed} {name}: {json.dumps({k: v for k, v in results[-1].items() if 'curve' not in k})}", flush=True
        )
    control = max(results[1:], key=lambda each: each["validation"])
    return {
        "seed": seed,
        **results[0],
        **{f"control_{key}": control[key] for key in ("rate", "steps", "seconds", "curve")},
        "control": control["control"],
        "control_rates": [
            {key: each[key] for key in ("rate", "steps", "validation", "control")} for each in results[1:]
        ],
        "processor": processor(),
    }


def recipe_digest(changes: Sequence[str]) -> str:
    """Return a digest of all recipe keys but the seed."""
    keys = {key: value for key, value in recipe_of(0, changes).keys.items() if key != "seed"}
    return hashlib.sha256(json.dumps(keys, sort_keys=True, default=str).encode()).hexdigest()[:16]


def merged_seeds(stored: Mapping[str, Any], seeds: Sequence[Mapping[str, Any]], recipe: str) -> list[Mapping[str, Any]]:
    """Return new and stored seeds in order; a new result replaces the stored one of its seed.

    Raises:
        SystemExit: The stored seeds are of another recipe.
    """
    if stored and stored["recipe"] != recipe:
        raise SystemExit(f"{RESULTS.name} has seeds of another recipe: remove the file to replace them all")
    by_seed = {each["seed"]: each for each in [*stored.get("seeds", ()), *seeds]}
    return [by_seed[seed] for seed in sorted(by_seed)]


def format_gain(differences: Sequence[float]) -> str:
    """Format the mean difference in points, with its interval over seeds if there are several."""
    mean, low, high = interval(differences)
    if len(differences) < 2:
        return f"{100 * mean:+.1f} points (one seed, so without an interval)"
    return f"{100 * mean:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"


def figure(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Plot success over minutes as an `<svg>` element: means over seeds, with the range of all seeds as a band.

    The minutes of each seed are scaled to their mean over seeds, because the seeds ran on different machines.
    """
    minutes = fmean(each["seconds"] for each in seeds) / 60
    sampled = [each["success_of_steps"] for each in seeds]
    updates = len(sampled[0])
    greedy = [{step: test for step, test, _ in each["curve"]} for each in seeds]
    control = [[each["start"], *(test for _, test, _ in each["control_curve"])] for each in seeds]
    control_times = [
        fmean(each["control_curve"][index][0] / each["control_steps"] for each in seeds)
        for index in range(len(control[0]) - 1)
    ]
    series = {
        "reinforcement, sampled at temperature 1": (
            [step / updates for step in range(updates)],
            zip(*sampled, strict=True),
        ),
        "reinforcement, greedy on test tasks": (
            [step / updates for step in sorted(greedy[0])],
            zip(*([each[step] for step in sorted(each)] for each in greedy), strict=True),
        ),
        "control (more supervised steps), greedy on test tasks": ([0.0, *control_times], zip(*control, strict=True)),
    }
    bands = {}
    for name, (times, values) in series.items():
        by_time = [tuple(each) for each in values]
        bands[name] = (
            [minutes * time for time in times],
            [fmean(each) for each in by_time],
            [min(each) for each in by_time],
            [max(each) for each in by_time],
        )
    return plot_bands(bands, x_label="minutes after the supervised stage")


def page(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Format the results as a Markdown page."""
    gain = format_gain([each["last"] - each["start"] for each in seeds])
    over = format_gain([each["last"] - each["control"] for each in seeds])
    took = ", ".join(f"{each['control_seconds'] / 60:.0f} of {each['seconds'] / 60:.0f} minutes" for each in seeds)
    rates = ", ".join(sorted({f"{each['control_rate']:g}" for each in seeds}))
    processors = sorted({each["processor"] for each in seeds})
    lines = [
        "# A pretrained model learns by reinforcement on two cores",
        "",
        f"`whetstone train {RECIPE}`: SmolLM2-135M with LoRA calls a calculator over several turns. The expert of the "
        "demonstrations has eight turns and repeats most calls to check them; the agent has five turns, too few for it "
        "in tasks of three operations. Reinforcement starts after a short supervised stage. The control continues that "
        "stage with fresh demonstrations, for the number of steps that the supervised stage would take in the time of "
        f"reinforcement (measured: {took}). Its learning rate is {rates}; validation tasks select its checkpoint.",
        "",
        f"Greedy success on {TEST_TASKS} test tasks, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}: **reinforcement "
        f"over its start {gain}, over the control {over}.** pass@{PASS_SAMPLES} and success at temperature 1 are of "
        f"{PASS_TASKS} test tasks.",
        "",
        f"![success over time]({RESULTS.stem}.svg)",
        "",
        "Lines are means over seeds, and bands are the range of the seeds.",
        "",
        f"Made by `python -m benchmarks smollm2_tools --write` on {', '.join(processors)}.",
        "",
        f"| seed | start | control | last | kept | temperature 1 | pass@{PASS_SAMPLES} | entropy at the start, nats "
        "| minutes of reinforcement (threads) "
        "| lowest kind of task |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for each in seeds:
        kind = min(each["last_by_kind"], key=each["last_by_kind"].__getitem__)
        start, last = each["start_by_kind"][kind], each["last_by_kind"][kind]
        lines.append(
            f"| {each['seed']} | {100 * each['start']:.1f} % | {100 * each['control']:.1f} % "
            f"| {100 * each['last']:.1f} % | {100 * each['kept']:.1f} % "
            f"| {100 * each['sampled_start']:.1f} → {100 * each['sampled_last']:.1f} % "
            f"| {100 * each['pass8_start']:.0f} → {100 * each['pass8_last']:.0f} % "
            f"| {each['entropy_start']:.2f} | {each['seconds'] / 60:.0f} ({each['threads']}) "
            f"| `{kind}`: {100 * start:.0f} → {100 * last:.0f} % |"
        )
    for each in seeds:
        if len(rates_of_seed := each.get("control_rates", ())) > 1:
            note = "" if any(one["control"] == each["control"] for one in rates_of_seed) else " in a second run"
            lines += ["", f"Learning rates of the control, compared on seed {each['seed']}{note}:", ""]
            lines += [
                "| learning rate | steps | success on validation tasks | on test tasks |",
                "| --: | --: | --: | --: |",
            ]
            lines += [
                f"| {one['rate']:g} | {one['steps']} | {100 * one['validation']:.1f} % | {100 * one['control']:.1f} % |"
                for one in rates_of_seed
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the missing units and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="recipe keys that differ")
    parser.add_argument("--folder", type=Path, default=Path("flagship"), help="directory of runs and results")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in CONTROL_RATES), help="of the control")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no new unit starts")
    parser.add_argument("--write", action="store_true", help="store the result and its page in benchmarks/results")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began, deadline = time.perf_counter(), time.monotonic() + arguments.budget
    rates = [float(rate) for rate in arguments.rates.split(",")]
    seeds = []
    for seed in [int(seed) for seed in arguments.seeds.split(",")]:
        result = run_seed(arguments.folder / str(seed), seed, rates, deadline, arguments.changes)
        if result is not None:
            seeds.append(result)
            rates = [result["control_rate"]]  # compared on the first seed only
    recipe = recipe_digest(arguments.changes)
    if arguments.write and seeds:
        stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        seeds = merged_seeds(stored, seeds, recipe)
    report = {"name": "smollm2_tools", "recipe": recipe, "seeds": seeds, **circumstances(began)}
    if arguments.write and seeds:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
        place = RESULTS.parents[1] / RESULTS.stem
        place.with_suffix(".md").write_text(page(seeds))
        place.with_suffix(".svg").write_text(figure(seeds))
    print(json.dumps(report) if arguments.json else page(seeds) if seeds else "")


if __name__ == "__main__":
    main()
