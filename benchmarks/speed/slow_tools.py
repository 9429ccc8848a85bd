"""Shared code of benchmarks that compare ways of training with slow tools, from the same weights.

The demo after its warm-up, on a separate Ray cluster if a way requires one; the first update is excluded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

COMMON = [
    "policy.tiny=null",
    "supervised=null",
    "ablations=null",
    "environment.tools=[asynchronous:pocket_calculator]",
    "environment.tool_timeout_seconds=60",
    "rollout.max_in_flight=384",
    "reinforcement.tasks_per_step=16",
    "reinforcement.learning_rate=5.0e-4",
    "reinforcement.checkpoint_interval_steps=1000",
]
RESULTS = Path(__file__).parents[1] / "results"
AHEAD = [
    "reinforcement.admit_ahead=2",
    "reinforcement.max_staleness=4",
    "importance_correction={name: masked, high: 5}",
]
ON_RAY = ["scale=local-ray", "scale.environment_workers=1", "scale.start_timeout_seconds=250"]
SKIPPED = 1
"""Initial updates that are excluded."""


def bench(
    description: str | None,
    name: str,
    ways: Mapping[str, Sequence[str]],
    *,
    summarize_rows: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]],
    page: Callable[[Any], str],
) -> None:
    """Run a benchmark from its options to its stored result.

    Args:
        found: Rows → further keys of the result: `ratios`, `goal` and parts of `measured`.
        page: Result → page.
    """
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--policy", type=Path, required=True, help="the demo after its warm-up")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--episodes", type=int, default=50, help="episodes per evaluation")
    options.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    options.add_argument("--write", action="store_true", help=f"write {name}.json and {name}.md")
    arguments = options.parse_args()
    began = time.perf_counter()
    sizes = {"seeds": arguments.seeds, "steps": arguments.steps, "episodes": arguments.episodes}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = compare_ways(ways, policy=arguments.policy, folder=folder, **sizes)
    summary = summarize_rows(rows)
    result = {
        "name": name,
        **summary,
        "measured": {"runs": rows, **summary.get("measured", {}), **sizes},
        "bound": "engine and learner share the cores: a step takes no less than both together",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "raw" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(page(result))
    print(json.dumps(result) if arguments.json else page(result))


def train_run(overrides: Sequence[str], steps: int, policy: Path, folder: Path, episodes: int) -> dict[str, Any]:
    """Train a run and return its seconds per step and success."""
    more = [f"policy.path={policy}", f"reinforcement.steps={steps}", f"evaluation.episodes={episodes}"]
    rows: list[Any] = []
    resolved = load_recipe("demo", [*COMMON, *overrides, *more])
    summary = train(resolved, folder, on_metrics=rows.append, progress=Progress(quiet=True))
    ends = [row["time/elapsed_seconds"] for row in rows]
    figures = {
        "seconds_a_step": (ends[-1] - ends[SKIPPED - 1]) / (len(ends) - SKIPPED),
        "engine": statistics.fmean(row["time/generation"] for row in rows),
        "learner": statistics.fmean(row["time/update"] for row in rows),
        "staleness_max": max(row["policy/staleness_max"] for row in rows),
        "before": summary.before.success,
        "success": summary.after.success,
        "interval": summary.after.interval,
    }
    if hits := [row["scale/prefix_cache_hit_rate"] for row in rows if "scale/prefix_cache_hit_rate" in row]:
        figures["prefix_cache_hit_rate"] = statistics.fmean(hits[SKIPPED:])
    return figures


def compare_ways(
    ways: Mapping[str, Sequence[str]], *, seeds: int, steps: int, policy: Path, folder: Path, episodes: int
) -> list[dict[str, Any]]:
    """Return a row per seed and way; stored rows in `folder` are reused."""
    rows = []
    for seed in range(seeds):
        for number, (way, overrides) in enumerate(ways.items()):
            stored_path = folder / f"{seed}-{number}.json"
            if not stored_path.is_file():
                shutil.rmtree(folder / f"{seed}-{number}", ignore_errors=True)
                own = [f"seed={seed}", *overrides]
                figures = train_run(own, steps, policy, folder / f"{seed}-{number}", episodes)
                stored_path.write_text(json.dumps({"seed": seed, "way": way, **figures}))
            rows.append(json.loads(stored_path.read_text()))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def quicker(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> list[float]:
    """Return the speedup per step of `other` over `one`, per seed."""
    seconds = {(row["way"], row["seed"]): row["seconds_a_step"] for row in rows}
    return [took / seconds[other, seed] for (way, seed), took in seconds.items() if way == one]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| seed | way | s a step | engine, s | learner, s | prompts' tokens at hand | staleness at most | success |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        hits = f"{row['prefix_cache_hit_rate']:.0%}" if "prefix_cache_hit_rate" in row else ""
        low, high = row["interval"]
        lines.append(
            f"| {row['seed']} | {row['way']} | {row['seconds_a_step']:.2f} | {row['engine']:.2f} | "
            f"{row['learner']:.2f} | {hits} | {row['staleness_max']:.0f} | {row['before']:.0%} → {row['success']:.0%} "
            f"({low:.0%} to {high:.0%}) |"
        )
    return lines
