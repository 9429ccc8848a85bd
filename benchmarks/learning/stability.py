"""Gradient stability with a filter of void turns, SimpleTIR's claim, on a tool with noisy, unseen output.

The demo's policy after its warm-up calls a calculator that returns unknown symbols for a third of all expressions; an
answer must be a number. After such noise the policy drifts to turns that neither call nor answer. It is trained
unchanged, with void episodes stopped, and with void episodes stopped and filtered, from the same weights on the same
tasks. The divisor of the loss is the same for all; otherwise filtered episodes would raise the weight of the others.

A spike is a gradient norm above three times the median of the same run. `--write FOLDER` writes the table to
FOLDER/stability.md and its figures to FOLDER/raw/stability.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from publishing import add_output_options, publish
from warm_up import train_warm_up
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

VARIANTS = {
    "as it is": [],
    "stopped": ["rollout.early_stopping=[void_turn]"],
    "stopped and filtered": ["rollout.early_stopping=[void_turn]", "credit_filters=[void_turns]"],
}
NOISY = ["environment={tools: ['noisy_tool:pocket_calculator'], answer: '^\\s*-?\\d+\\s*$', max_turns: 6}"]
COMMON = [
    "ablations=null",
    "supervised=null",
    "policy.tiny=null",
    "reinforcement.checkpoint_interval_steps=1000",
    "reinforcement.minibatches=2",
    # divided by the number of tokens, fewer episodes would have larger weights
    "aggregation={mode: constant, tokens: 48}",
]
SPIKE = 3.0


def train_run(overrides: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Train a run and return gradient norms per update, fractions of void episodes, and success."""
    recipe = load_recipe("demo", [*COMMON, *NOISY, *overrides, f"policy.path={model}"])
    summary = train(recipe, folder, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    norms = [row["update/grad_norm"] for row in rows if "update/grad_norm" in row]
    median = statistics.median(norms)
    return {
        "norms": norms,
        "median": median,
        "largest_over_median": max(norms) / median,
        "spikes": sum(norm > SPIKE * median for norm in norms),
        "filtered_fraction": statistics.fmean(
            row.get("credit_filters/void_turns_removed_fraction", 0.0) for row in rows
        ),
        "stopped_fraction": statistics.fmean(row.get("flag/void_turn", 0.0) for row in rows),
        "mismatch_kl": max(row.get("sampler/mismatch_kl", 0.0) for row in rows),
        "before": summary.before.success,
        "after": summary.after.success,
    }


def main() -> None:
    """Run all variants, print the table, and optionally write it."""
    parser = add_output_options(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=12, help="tasks per update, with eight episodes each")
    parser.add_argument("--episodes", type=int, default=300, help="episodes per evaluation")
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            model = train_warm_up(seed, folder / f"warm-{seed}", f"supervised.steps={arguments.warm_up}")
            for variant, more in VARIANTS.items():
                run_dir = folder / "run"
                overrides = [
                    f"seed={seed}",
                    f"reinforcement.steps={arguments.updates}",
                    f"reinforcement.tasks_per_step={arguments.tasks}",
                    f"reinforcement.learning_rate={arguments.learning_rate}",
                    "reinforcement.decay_fraction=0",
                    f"evaluation.episodes={arguments.episodes}",
                    *more,
                ]
                rows.append({"seed": seed, "variant": variant, **train_run(overrides, model, run_dir)})
                shutil.rmtree(run_dir)
                figures = {key: value for key, value in rows[-1].items() if key != "norms"}
                print(figures, file=sys.stderr, flush=True)
    publish(build_result(rows, arguments, began), format_page, arguments)


def build_result(rows: list[dict[str, Any]], arguments: argparse.Namespace, began: float) -> dict[str, Any]:
    """Return the result as one object; the ratio is that of the largest norms, unchanged over stopped and filtered."""
    plain = {row["seed"]: row for row in rows if row["variant"] == "as it is"}
    both = [row for row in rows if row["variant"] == "stopped and filtered"]
    ratio = statistics.median(max(plain[row["seed"]]["norms"]) / max(row["norms"]) for row in both)
    budget = {key: getattr(arguments, key) for key in ("seeds", "updates", "tasks", "warm_up", "learning_rate")}
    return {
        "name": "stability",
        "measured": {"runs": rows, "budget": budget},
        "ratios": {"largest_norm_as_it_is_over_filtered": ratio},
        "goal": "fewer and smaller spikes with the filter (SimpleTIR's claim)",
        "bound": "how often the policy drifts at all",
        **circumstances(began),
    }


def format_page(result: dict[str, Any]) -> str:
    """Return the page with the table."""
    budget = result["measured"]["budget"]
    lines = [
        "# Gradients with a noisy tool",
        "",
        f"{budget['updates']} updates of {budget['tasks']} tasks with 8 episodes each at a rate of",
        f"{budget['learning_rate']:g}, from the same weights; seed by seed. A spike is a norm above three times the",
        "run's median. The loss is divided by a constant, the same for all. `make bench NAME=stability`.",
        "",
        "| variant | median norm | largest norm | largest / median | spikes | void episodes | before | after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for variant in VARIANTS:
        own_rows = [row for row in result["measured"]["runs"] if row["variant"] == variant]
        median = " ".join(f"{row['median']:.3f}" for row in own_rows)
        largest = " ".join(f"{row['largest_over_median']:.1f}" for row in own_rows)
        spikes = " ".join(str(row["spikes"]) for row in own_rows)
        void = " ".join(f"{100 * max(row['filtered_fraction'], row['stopped_fraction']):.0f} %" for row in own_rows)
        before, after = (" ".join(f"{100 * row[key]:.0f}" for row in own_rows) for key in ("before", "after"))
        norms = " ".join(f"{max(row['norms']):.2f}" for row in own_rows)
        lines.append(f"| {variant} | {median} | {norms} | {largest} | {spikes} | {void} | {before} | {after} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
