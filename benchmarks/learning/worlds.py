"""Gain of reinforcement after a warm-up for a tiny model, in environments other than arithmetic.

Trains each recipe and compares the policy after the warm-up with the one after reinforcement on the same held-out
tasks: the mean of paired differences with its 95 % interval (bootstrap over tasks).

Prints a table, or one JSON object with `--json`; `--results FOLDER` writes both there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy

from circumstances import circumstances
from episode_files import successes_by_task
from whetstone.recipe import load_recipe
from whetstone.training import train

RECIPES = (
    "text-to-sql", "multi-hop-search", "textworld", "web-shop", "support", "frozen-lake", "twenty-questions",
)  # fmt: skip

_BELOW = """
One seed. A model of about half a million parameters: demonstrations first (warm-up), then GRPO; success of the greedy
policy on held-out tasks, and the mean of the differences task by task with its bootstrap interval. Minutes are of
training, both stages, on two cores that may have had other work, too. `python -m benchmarks worlds --results
benchmarks/results` makes this table again.
"""


def solved(folder: Path, stage: str) -> dict[str, float]:
    """Return task → fraction of successful episodes in the evaluation after a stage."""
    results = successes_by_task(folder / "trajectories" / f"evaluation-{stage}.jsonl")
    return {task: float(numpy.mean(each)) for task, each in results.items()}


def compare_stages(folder: Path) -> dict[str, Any]:
    """Return the gain of reinforcement in a run."""
    before, after = solved(folder, "supervised"), solved(folder, "reinforcement")
    tasks = sorted(set(before) & set(after))
    differences = numpy.array([after[task] - before[task] for task in tasks])
    draw = numpy.random.default_rng(0)
    means = differences[draw.integers(0, len(tasks), (10_000, len(tasks)))].mean(axis=1)
    low, high = numpy.quantile(means, [0.025, 0.975])
    return {
        "tasks": len(tasks),
        "warm_up": float(numpy.mean([before[task] for task in tasks])),
        "reinforced": float(numpy.mean([after[task] for task in tasks])),
        "difference": float(differences.mean()),
        "interval": [float(low), float(high)],
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| recipe | tasks | warm-up | reinforced | difference (95 %) | minutes |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, row in rows.items():
        low, high = row["interval"]
        lines.append(
            f"| {name} | {row['tasks']} | {100 * row['warm_up']:.1f} % | {100 * row['reinforced']:.1f} % "
            f"| {100 * row['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | {row['minutes']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train all recipes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.recipes:
            folder = (arguments.runs or Path(scratch)) / name
            if not (folder / "summary.json").is_file():
                started = time.perf_counter()
                train(load_recipe(name), folder)
                (folder / "minutes").write_text(str((time.perf_counter() - started) / 60))
            minutes = folder / "minutes"
            rows[name] = compare_stages(folder) | {
                "minutes": float(minutes.read_text()) if minutes.is_file() else float("nan")
            }
            if not arguments.json:
                print(table({name: rows[name]}).splitlines()[-1], flush=True)
    report = {
        "name": "worlds", "measured": rows, "ratios": {}, "goal": "every interval above 0",
        **circumstances(began),
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(report))
    if arguments.results is not None:
        (arguments.results / "raw").mkdir(parents=True, exist_ok=True)
        (arguments.results / "raw" / "worlds.json").write_text(json.dumps(report, indent=1) + "\n")
        (arguments.results / "worlds.md").write_text(f"# Learning in worlds\n\n{table(rows)}\n{_BELOW}")


if __name__ == "__main__":
    main()
