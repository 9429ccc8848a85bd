"""What do several ways of training take where tools are slow? Each from the same weights, one after the other.

The demo behind its warm-up, on a Ray of its own where a way asks for it. What is common to benches that compare such
ways; the first update of each does not count.
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
RESULTS = Path(__file__).parent / "results"
AHEAD = [
    "reinforcement.admit_ahead=2",
    "reinforcement.max_staleness=4",
    "importance_correction={name: masked, high: 5}",
]
ON_RAY = ["scale=local-ray", "scale.environment_workers=1", "scale.start_timeout_seconds=250"]
SKIPPED = 1
"""Updates in front that do not count."""


def bench(
    description: str | None,
    name: str,
    ways: Mapping[str, Sequence[str]],
    *,
    found: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]],
    page: Callable[[Any], str],
) -> None:
    """A bench from its options to its stored result.

    Args:
        found: From the rows, what it says beside them: `ratios`, `goal`, and more of `measured`.
        page: The result for a reader.
    """
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--policy", type=Path, required=True, help="the demo behind its warm-up")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--episodes", type=int, default=50, help="of each evaluation")
    options.add_argument("--folder", type=Path, help="where runs are kept, and counted if they are there already")
    options.add_argument("--write", action="store_true", help=f"write {name}.json and {name}.md")
    arguments = options.parse_args()
    began = time.perf_counter()
    given = {"seeds": arguments.seeds, "steps": arguments.steps, "episodes": arguments.episodes}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = compared(ways, policy=arguments.policy, folder=folder, **given)
    told = found(rows)
    said = {
        "name": name,
        **told,
        "measured": {"runs": rows, **told.get("measured", {}), **given},
        "bound": "engine and learner share the cores: a step takes no less than both together",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(page(said))
    print(json.dumps(said) if arguments.json else page(said))


def trained(overrides: Sequence[str], steps: int, policy: Path, folder: Path, episodes: int) -> dict[str, Any]:
    """Seconds a step, and success."""
    more = [f"policy.path={policy}", f"reinforcement.steps={steps}", f"evaluation.episodes={episodes}"]
    rows: list[Any] = []
    resolved = load_recipe("demo", [*COMMON, *overrides, *more])
    summary = train(resolved, folder, on_metrics=rows.append, progress=Progress(quiet=True))
    ends = [row["time/elapsed_seconds"] for row in rows]
    found = {
        "seconds_a_step": (ends[-1] - ends[SKIPPED - 1]) / (len(ends) - SKIPPED),
        "engine": statistics.fmean(row["time/generation"] for row in rows),
        "learner": statistics.fmean(row["time/update"] for row in rows),
        "staleness_max": max(row["policy/staleness_max"] for row in rows),
        "before": summary.before.success,
        "success": summary.after.success,
        "interval": summary.after.interval,
    }
    if hits := [row["scale/prefix_cache_hit_rate"] for row in rows if "scale/prefix_cache_hit_rate" in row]:
        found["prefix_cache_hit_rate"] = statistics.fmean(hits[SKIPPED:])
    return found


def compared(
    ways: Mapping[str, Sequence[str]], *, seeds: int, steps: int, policy: Path, folder: Path, episodes: int
) -> list[dict[str, Any]]:
    """A row for each seed and way, by seed; those that are in `folder` already are counted as they are."""
    rows = []
    for seed in range(seeds):
        for number, (way, overrides) in enumerate(ways.items()):
            kept = folder / f"{seed}-{number}.json"
            if not kept.is_file():
                shutil.rmtree(folder / f"{seed}-{number}", ignore_errors=True)
                own = [f"seed={seed}", *overrides]
                found = trained(own, steps, policy, folder / f"{seed}-{number}", episodes)
                kept.write_text(json.dumps({"seed": seed, "way": way, **found}))
            rows.append(json.loads(kept.read_text()))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def quicker(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> list[float]:
    """How many times less a step of `other` takes than one of `one`, seed by seed."""
    seconds = {(row["way"], row["seed"]): row["seconds_a_step"] for row in rows}
    return [took / seconds[other, seed] for (way, seed), took in seconds.items() if way == one]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For a page."""
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
