"""Cost and success of branching rollouts against independent sampling, with equal numbers of trajectories.

On the demo's calculator task and on a text game, from the same warm-up: independent sampling, entropy branching
(ARPO), balanced branching (AEPO) and a frontier tree (PORTool, TreePS), with eight trajectories per group. Costs are
sampled tokens, tool calls and environment steps per group in training. Success is on the same held-out tasks before
and after.

`--write FOLDER` writes the table to FOLDER/branching.md and its figures to FOLDER/raw/branching.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from publishing import add_output_options, publish
from warm_up import train_warm_up
from whetstone.evaluation.significance import t_interval
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

STRATEGIES = {
    "independent": [],
    "entropy_branching": ["rollout.strategy={name: entropy_branching, roots: 4}"],
    "entropy_branching, 2 roots": ["rollout.strategy={name: entropy_branching, roots: 2}"],
    "balanced_branching": ["rollout.strategy=balanced_branching"],
    "frontier_tree": ["rollout.strategy=frontier_tree"],
}
GAME = [
    "tasks={source: 'text_game:Houses'}",
    "environment={name: 'text_game:Walking', max_turns: 10}",
    "reward=text_game:found_coin",
]
PLAIN: list[str] = []
COMMON = [
    "ablations=null",
    "supervised=null",
    "policy.tiny=null",
    "reinforcement.checkpoint_interval_steps=1000",
    "reinforcement.decay_fraction=0.5",
]
COSTS = ("sampled_tokens", "reused_tokens", "tool_calls", "environment_steps")
SEEDS = 8
"""Number of seeds that a verdict needs."""
SHOWN = (*COSTS, "sampling_seconds")


def train_run(overrides: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Train a run and return its mean costs per group, and success before and after."""
    recipe = load_recipe("demo", [*COMMON, *overrides, f"policy.path={model}"])
    summary = train(recipe, folder, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    costs = {name: statistics.fmean(row[f"cost_per_group/{name}"] for row in rows) for name in COSTS}
    return {
        **costs,
        "before": summary.before.success,
        "after": summary.after.success,
        "interval": summary.after.interval,
        "sampling_seconds": statistics.fmean(row["time/rollout"] for row in rows),
        "update_seconds": statistics.fmean(row["time/update"] for row in rows),
    }


def main() -> None:
    """Run all strategies, print the table, and optionally write it."""
    parser = add_output_options(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=12, help="tasks per update, with eight trajectories each")
    parser.add_argument("--episodes", type=int, default=400, help="episodes per evaluation")
    parser.add_argument(
        "--warm-up", type=int, default=360, help="warm-up steps on the calculator task; the game has an eighteenth"
    )
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            worlds = {"calculator": (PLAIN, arguments.warm_up), "game": (GAME, arguments.warm_up // 18)}
            for world, (changes, steps) in worlds.items():
                model = train_warm_up(seed, folder / f"{world}-{seed}", f"supervised.steps={steps}", *changes)
                for strategy, more in STRATEGIES.items():
                    run_dir = folder / "run"
                    overrides = [
                        f"seed={seed}",
                        f"reinforcement.steps={arguments.updates}",
                        f"reinforcement.tasks_per_step={arguments.tasks}",
                        f"evaluation.episodes={arguments.episodes}",
                        *changes,
                        *more,
                    ]
                    figures = train_run(overrides, model, run_dir)
                    rows.append({"seed": seed, "world": world, "strategy": strategy, **figures})
                    shutil.rmtree(run_dir)
                    print(rows[-1], file=sys.stderr, flush=True)
    publish(build_result(rows, arguments, began), format_page, arguments)


def build_result(rows: list[dict[str, Any]], arguments: argparse.Namespace, began: float) -> dict[str, Any]:
    """Return the result as one object; ratios are independent sampling over the strategy, higher is cheaper."""
    ratios: dict[str, float] = {}
    plain = {(row["world"], row["seed"]): row for row in rows if row["strategy"] == "independent"}
    for world in ("calculator", "game"):
        for strategy in STRATEGIES:
            own_rows = [row for row in rows if row["world"] == world and row["strategy"] == strategy]
            for cost in ("sampled_tokens", "tool_calls"):
                each = [plain[world, row["seed"]][cost] / row[cost] for row in own_rows]
                ratios[f"{world}, {strategy}: {cost}"] = statistics.median(each)
    budget = {key: getattr(arguments, key) for key in ("seeds", "updates", "tasks", "episodes", "warm_up")}
    return {
        "name": "branching",
        "measured": {"runs": rows, "budget": budget},
        "ratios": ratios,
        "goal": "half the tool calls at equal or better success (ARPO's claim)",
        "bound": "a fork saves the turns in front of it: at most what half of the trajectories share",
        **circumstances(began),
    }


def format_page(result: dict[str, Any]) -> str:
    """Return the page with the table."""
    budget = result["measured"]["budget"]
    lines = [
        "# Branching at as many trajectories",
        "",
        f"{budget['updates']} updates of {budget['tasks']} tasks with 8 trajectories each, from the same weights.",
        "Costs are means per group over updates and seeds; seconds are the sampling time of all groups of an update;",
        "in brackets, the fraction of independent sampling.",
        f"Success on {budget['episodes']} held-out tasks, greedy, per seed; gain and difference are means with 95 %",
        "intervals over seeds (t distribution, paired). `make bench NAME=branching`.",
        "",
        "| world | strategy | sampled tokens | reused | tool calls | world steps | seconds | before | after | gain "
        "| difference from independent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = result["measured"]["runs"]
    for world in ("calculator", "game"):
        plain = [row for row in rows if row["world"] == world and row["strategy"] == "independent"]
        for strategy in STRATEGIES:
            own_rows = [row for row in rows if row["world"] == world and row["strategy"] == strategy]
            cells = []
            for cost in SHOWN:
                value, usual = (statistics.fmean(row[cost] for row in side) for side in (own_rows, plain))
                share = f" ({value / usual:.2f})" if usual else ""
                cells.append(f"{value:.{2 if value < 10 else 0}f}{share}")
            before, after = (" ".join(f"{100 * row[key]:.0f}" for row in own_rows) for key in ("before", "after"))
            gain = _format_mean([row["after"] - row["before"] for row in own_rows])
            differences = [one["after"] - other["after"] for one, other in zip(own_rows, plain, strict=True)]
            difference = "" if strategy == "independent" else _format_mean(differences)
            lines.append(f"| {world} | {strategy} | {' | '.join(cells)} | {before} | {after} | {gain} | {difference} |")
    seeds = len({row["seed"] for row in rows})
    if seeds < SEEDS:
        lines += ["", f"{seeds} seeds do not show which strategy is better; a verdict needs {SEEDS}."]
    return "\n".join(lines) + "\n"


def _format_mean(values: Sequence[float]) -> str:
    """Format the mean in points, with its 95 % interval over seeds if there are several."""
    mean = 100 * statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    low, high, _ = t_interval(values)
    return f"{mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    main()
