"""Does leaving out void turns keep gradients calm? SimpleTIR's claim, on a tool with noisy, unseen output.

The demo's policy behind its warm-up meets a calculator that answers a third of all expressions with signs it has never
read; an answer must be a number. Behind such noise it drifts: turns that neither call nor answer. Trained as it is,
with void episodes stopped, and with them filtered as well, from the same weights on the same tasks. What an update's
loss is divided by is the same for all, or leaving out half of the episodes would make the others count twice.

A spike is a gradient norm above three times the median of the same run. `--write FOLDER` puts the table into
FOLDER/stability.md and what it is made of into FOLDER/stability.json.
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
from publishing import publish, with_publishing
from warm_up import warmed_up
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
    # by the number of tokens, fewer episodes would be louder ones
    "aggregation={mode: constant, tokens: 48}",
]
SPIKE = 3.0


def learned(overrides: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Gradient norms of each update, how many episodes were void, and success before and after."""
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
    """Run them, print the table, and write it where asked."""
    parser = with_publishing(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=12, help="of an update, eight episodes each")
    parser.add_argument("--episodes", type=int, default=300, help="of an evaluation")
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            model = warmed_up(seed, folder / f"warm-{seed}", f"supervised.steps={arguments.warm_up}")
            for variant, more in VARIANTS.items():
                there = folder / "run"
                overrides = [
                    f"seed={seed}",
                    f"reinforcement.steps={arguments.updates}",
                    f"reinforcement.tasks_per_step={arguments.tasks}",
                    f"reinforcement.learning_rate={arguments.learning_rate}",
                    "reinforcement.decay_fraction=0",
                    f"evaluation.episodes={arguments.episodes}",
                    *more,
                ]
                rows.append({"seed": seed, "variant": variant, **learned(overrides, model, there)})
                shutil.rmtree(there)
                shown = {key: value for key, value in rows[-1].items() if key != "norms"}
                print(shown, file=sys.stderr, flush=True)
    publish(told_of(rows, arguments, began), table_of, arguments)


def told_of(rows: list[dict[str, Any]], arguments: argparse.Namespace, began: float) -> dict[str, Any]:
    """The result as one object; the ratio is of the largest norms, as it is over stopped and filtered."""
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


def table_of(told: dict[str, Any]) -> str:
    """The table as a page."""
    budget = told["measured"]["budget"]
    lines = [
        "# Gradients behind a noisy tool",
        "",
        f"{budget['updates']} updates of {budget['tasks']} tasks with 8 episodes each at a rate of",
        f"{budget['learning_rate']:g}, from the same weights; seed by seed. A spike is a norm above three times the",
        "run's median. The loss is divided by a constant, the same for all. `make bench NAME=stability`.",
        "",
        "| variant | median norm | largest norm | largest / median | spikes | void episodes | before | after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for variant in VARIANTS:
        mine = [row for row in told["measured"]["runs"] if row["variant"] == variant]
        median = " ".join(f"{row['median']:.3f}" for row in mine)
        largest = " ".join(f"{row['largest_over_median']:.1f}" for row in mine)
        spikes = " ".join(str(row["spikes"]) for row in mine)
        void = " ".join(f"{100 * max(row['filtered_fraction'], row['stopped_fraction']):.0f} %" for row in mine)
        before, after = (" ".join(f"{100 * row[key]:.0f}" for row in mine) for key in ("before", "after"))
        norms = " ".join(f"{max(row['norms']):.2f}" for row in mine)
        lines.append(f"| {variant} | {median} | {norms} | {largest} | {spikes} | {void} | {before} | {after} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
