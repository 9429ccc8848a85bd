"""Equality of training in one process and in several, per step, and the cost of distribution.

    python -m benchmarks learner_group                      # one process and two
    python -m benchmarks learner_group --processes 1 2 4 --json

The runs differ only in `scale.learner_processes`. The optimizer is AdamW, which computes element by element; Muon
rounds to bfloat16, so that its weights agree only to that precision. The processes share the cores of one machine, so
that only the cost of distribution is measured, not its gain.

Source: Redco, arXiv:2310.16355: the user's code is the same on one device and on many. Here the recipe is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from circumstances import circumstances
from import_paths import python_path
from learner import SETTINGS, build_forks, build_groups
from whetstone.learning.packing import PackedPiece
from whetstone.scaling.distributed_learner.load_balancing import compute_balance, partition_segments

RESULTS = Path(__file__).parents[1] / "results"
DEALT = (2, 4, 8, 16)
SHORT = [
    "supervised.steps=40", "reinforcement.steps=4", "reinforcement.tasks_per_step=8",
    "reinforcement.epochs=2", "reward=crash:parity", "evaluation.episodes=4", "ablations=null",
]  # fmt: skip
"""The reward differs between samples of an untrained policy, so that gradients are not 0."""
ADAMW = [
    "supervised.optimizer=adamw", "supervised.learning_rate=1e-3", "reinforcement.optimizer=adamw",
    "reinforcement.learning_rate=1e-6",
]  # fmt: skip
"""Learning rate that is usual for large models. AdamW divides by the gradient's size: if a gradient is almost 0, its
last bits determine the step. At a hundred times this rate, different tokens were sampled in 0, 1, 6 and 50 of the 64
episodes of four updates, whose losses then belong to different episodes."""


def train_run(processes: int, folder: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Train a short run with a number of processes and return losses, weights and seconds."""
    run, stored_path = folder / f"of-{processes}", folder / f"of-{processes}.json"
    if stored_path.is_file():
        return {**json.loads(stored_path.read_text()), "weights": _weights(run)}
    shutil.rmtree(run, ignore_errors=True)
    words = ["train", "demo", *SHORT, *changes, f"scale.learner_processes={processes}", "--run-dir", str(run)]
    began, used = time.perf_counter(), cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{processes} processes: {done.stdout[-500:]}{done.stderr[-1500:]}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of = {stage: [row for row in rows if row["stage"] == stage] for stage in ("supervised", "reinforcement")}
    result = {
        "losses": {stage: [row["loss/total"] for row in stage_rows] for stage, stage_rows in of.items()},
        "gradients": {stage: [row["update/grad_norm"] for row in stage_rows] for stage, stage_rows in of.items()},
        "update_seconds": {stage: [row["time/update"] for row in stage_rows] for stage, stage_rows in of.items()},
        "seconds": seconds,
        "cpu_seconds": cpu_seconds() - used,
    }
    stored_path.write_text(json.dumps(result))
    return {**result, "weights": _weights(run)}


def _weights(run: Path) -> dict[str, Any]:
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "model.safetensors")


def cpu_seconds() -> float:
    """Return the CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_balance(ranks: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return the load balance of an update of 32 groups, and of forks with as many tokens.

    Balance is the computation of all ranks over their capacity in the time of the slowest rank per round.
    """
    balance: dict[str, dict[str, float]] = {}
    for name, segments in {"groups": build_groups("1m", 32), "forks": build_forks("1m", 8)}.items():
        balance[name] = {}
        for count in ranks:
            rounds = partition_segments(
                segments, count, token_budget=SETTINGS.micro_batch_tokens, share=True, cost=cost
            )
            balance[name][str(count)] = compute_balance(rounds)
    return balance


def cost(piece: PackedPiece) -> float:
    """Return the cost of a piece for a model with 4 layers and 128 hidden units."""
    return 6 * piece.tokens * 4 * (4 * 128**2 + 3 * 128 * 384) + 12 * piece.pairs * 4 * 128


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    measured = result["measured"]
    first, *others = measured.values()
    steps = {stage: len(losses) for stage, losses in first["losses"].items()}
    lines = [
        "# The same recipe in one process and in several",
        "",
        f"`python -m benchmarks learner_group --write`, {result['machine']['cores']} cores, gloo. "
        "`scale.learner_processes` and nothing else differs between the runs (Redco, arXiv:2310.16355, claims as much "
        f"of user code from one device to many): {steps['supervised']} steps of imitation and "
        f"{steps['reinforcement']} of reinforcement of the demo, AdamW, at rates of 1e-3 and 1e-6.",
        "",
        "| processes | losses apart, at most | gradient's norm apart, of it | weights apart, at most "
        "| an update of imitation, ms | of reinforcement, ms | a run, s | of processors, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for count, of in measured.items():
        update = of["update_seconds"]
        lines.append(
            f"| {count} | {of['loss_apart']:.2g} | {of['gradient_apart']:.2g} | {of['weights_apart']:.2g} | "
            f"{1000 * update['supervised']:.0f} | {1000 * update['reinforcement']:.0f} | {of['run_seconds']:.1f} | "
            f"{of['run_cpu_seconds']:.1f} |"
        )
    lines += [
        "",
        "The processes share the cores of one machine and gain nothing: only the cost of distribution is measured.",
        "",
        "AdamW divides by the gradient's size, so that the last bits of a gradient near 0 determine the step. At a "
        "reinforcement learning rate of 1e-4, such differences changed sampled tokens in 0, 1, 6 and 50 of the 64 "
        "episodes of updates 1 to 4, whose losses then belong to different episodes.",
        "",
        "| step | " + " | ".join(f"loss, gradient's norm of {count}" for count in measured) + " |",
        "| --- |" + " --- |" * len(measured),
    ]
    steps_shown = {
        stage: range(0, len(losses), 10 if len(losses) > 10 else 1) for stage, losses in first["losses"].items()
    }
    for stage, places in steps_shown.items():
        for k in places:
            each = " | ".join(
                f"{of['losses'][stage][k]:.7f}, {of['gradients'][stage][k]:.6f}" for of in (first, *others)
            )
            lines.append(f"| {stage} {k + 1} | {each} |")
    lines += ["", "Load balance of an update: the computation of all ranks over their capacity in the time of the "
              "slowest rank per round.", "", "| segments | " + " | ".join(f"{n} ranks" for n in DEALT) + " |",
              "| --- |" + " --- |" * len(DEALT)]  # fmt: skip
    for name, even in result["dealing"].items():
        lines.append(f"| {name} | " + " | ".join(f"{even[str(n)]:.1%}" for n in DEALT) + " |")
    lines += [
        "",
        "Tests (`tests/scaling/test_learner_group.py`) check that losses and gradients of 1, 2 and 4 processes agree "
        "within 1e-5 for packed sequences, shared prefixes, critics, preferences and adapters, and that 1 and 4 "
        "processes resume checkpoints of 2.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train all runs, compare them and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--muon", action="store_true", help="use the demo's optimizer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write learner_group.json and learner_group.md")
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        where = arguments.folder or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        runs = {count: train_run(count, where, [] if arguments.muon else ADAMW) for count in arguments.processes}
    first = runs[arguments.processes[0]]
    measured: dict[str, Any] = {}
    for count, run in runs.items():
        measured[str(count)] = {
            "losses": run["losses"],
            "loss_apart": max(
                abs(a - b)
                for stage in first["losses"]
                for a, b in zip(first["losses"][stage], run["losses"][stage], strict=True)
            ),
            "gradients": run["gradients"],
            "gradient_apart": max(
                abs(a - b) / a
                for stage in first["gradients"]
                for a, b in zip(first["gradients"][stage], run["gradients"][stage], strict=True)
            ),
            "weights_apart": max(float((first["weights"][n] - w).abs().max()) for n, w in run["weights"].items()),
            "update_seconds": {stage: sorted(of)[len(of) // 2] for stage, of in run["update_seconds"].items()},
            "run_seconds": run["seconds"],
            "run_cpu_seconds": run["cpu_seconds"],
        }
    result = {
        "name": "learner_group",
        "measured": measured,
        "dealing": measure_balance(DEALT),
        "ratios": {},
        "goal": "losses and weights within 1e-5",
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "raw" / "learner_group.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "learner_group.md").write_text(page(result))
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for count, of in measured.items():
        print(
            f"{count} processes: losses {of['loss_apart']:.2g} apart, weights {of['weights_apart']:.2g}; an update "
            f"{of['update_seconds']['supervised'] * 1000:.0f} ms (imitation), "
            f"{of['update_seconds']['reinforcement'] * 1000:.0f} ms (reinforcement); a run {of['run_seconds']:.1f} s, "
            f"{of['run_cpu_seconds']:.1f} s of processors"
        )
    for name, even in result["dealing"].items():
        balances = ", ".join(f"{count} ranks {share:.1%}" for count, share in even.items())
        print(f"{name}: balance {balances}")


if __name__ == "__main__":
    main()
