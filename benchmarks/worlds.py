"""Does a tiny model, warmed up, get better by reinforcement in worlds that are not arithmetic?

Trains each recipe, and compares the policy behind the warm-up with that behind reinforcement on the same held-out
tasks: the mean of the differences, task by task, with its 95 % interval (bootstrap over tasks).

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
from whetstone.recipe import load_recipe
from whetstone.training import train

RECIPES = (
    "text-to-sql", "multi-hop-search", "textworld", "web-shop", "support", "frozen-lake", "twenty-questions",
)  # fmt: skip

_BELOW = """
One seed. A model of about half a million parameters: demonstrations first (warm-up), then GRPO; success of the greedy
policy on held-out tasks, and the mean of the differences task by task with its bootstrap interval. Minutes are of
training, both stages, on two cores that may have had other work, too. `python benchmarks/worlds.py --results
benchmarks/results` makes this table again.
"""


def solved(folder: Path, stage: str) -> dict[str, float]:
    """Task → share of its episodes that were solved, in the evaluation behind a stage."""
    shares: dict[str, list[float]] = {}
    for line in (folder / "trajectories" / f"evaluation-{stage}.jsonl").open():
        row = json.loads(line)
        if row["score"] is not None:
            shares.setdefault(row["task_id"], []).append(float(bool(row["score"]["success"])))
    return {task: float(numpy.mean(each)) for task, each in shares.items()}


def compared(folder: Path) -> dict[str, Any]:
    """What reinforcement added in a run."""
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
    """As Markdown."""
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
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=Path, help="where runs are kept; finished ones there are not trained again")
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
            rows[name] = compared(folder) | {
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
        (arguments.results / "worlds.json").write_text(json.dumps(report, indent=1) + "\n")
        (arguments.results / "worlds.md").write_text(f"# Learning in worlds\n\n{table(rows)}\n{_BELOW}")


if __name__ == "__main__":
    main()
