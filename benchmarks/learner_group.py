"""Does the same recipe learn the same in one process and in several, and what does that cost? Losses step by step.

    python benchmarks/learner_group.py                      # one process and two
    python benchmarks/learner_group.py --processes 1 2 4 --json

Each run is the demo's own file with `scale.learner_processes`, and nothing else, different. Optimisers are AdamW, whose
arithmetic is element by element; Muon rounds to bfloat16 in the middle, so its weights agree as far as that does. On
one machine's cores processes share what one would use alone: measured is what dividing costs, not what it gains.

Redco 2310.16355: a user's code stays what it is from one device to many. Here the recipe does.
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
from learner import SETTINGS, forks, groups
from whetstone.learning.packing import Piece
from whetstone.scaling.learners.dealing import balance, rounds_of

RESULTS = Path(__file__).parent / "results"
DEALT = (2, 4, 8, 16)
SHORT = [
    "supervised.steps=40", "reinforcement.steps=4", "reinforcement.tasks_per_step=8",
    "reinforcement.epochs=2", "reward=crash:parity", "evaluation.episodes=4", "ablations=null",
]  # fmt: skip
"""The reward tells samples of a policy apart that cannot do the task yet: there is something to learn from."""
ADAMW = [
    "supervised.optimizer=adamw", "supervised.learning_rate=1e-3", "reinforcement.optimizer=adamw",
    "reinforcement.learning_rate=1e-6",
]  # fmt: skip
"""Reinforcement at the rate that is usual for large models. AdamW divides by the size of what it is given: where a
gradient is nearly nothing its last bits decide a step, and at a hundred times this rate another token is drawn now and
then, in 0, 1, 6 and 50 of the 64 episodes of four updates; from there losses are of other episodes."""


def trained(processes: int, folder: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Losses, weights and seconds of a short run by so many processes."""
    run, kept = folder / f"of-{processes}", folder / f"of-{processes}.json"
    if kept.is_file():
        return {**json.loads(kept.read_text()), "weights": _weights(run)}
    shutil.rmtree(run, ignore_errors=True)
    words = ["train", "demo", *SHORT, *changes, f"scale.learner_processes={processes}", "--run-dir", str(run)]
    began, used = time.perf_counter(), cpu_seconds()
    known = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": known},
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{processes} processes: {done.stdout[-500:]}{done.stderr[-1500:]}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of = {stage: [row for row in rows if row["stage"] == stage] for stage in ("supervised", "reinforcement")}
    said = {
        "losses": {stage: [row["loss/total"] for row in stage_rows] for stage, stage_rows in of.items()},
        "gradients": {stage: [row["update/grad_norm"] for row in stage_rows] for stage, stage_rows in of.items()},
        "update_seconds": {stage: [row["time/update"] for row in stage_rows] for stage, stage_rows in of.items()},
        "seconds": seconds,
        "cpu_seconds": cpu_seconds() - used,
    }
    kept.write_text(json.dumps(said))
    return {**said, "weights": _weights(run)}


def _weights(run: Path) -> dict[str, Any]:
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "model.safetensors")


def cpu_seconds() -> float:
    """Of processors, by everything that was started here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dealt(ranks: Sequence[int]) -> dict[str, dict[str, float]]:
    """How evenly an update of 32 groups, and of forks as many tokens large, is dealt out: what all ranks compute, over
    what they could in the time the slowest of each round takes."""
    found: dict[str, dict[str, float]] = {}
    for name, segments in {"groups": groups("1m", 32), "forks": forks("1m", 8)}.items():
        found[name] = {}
        for count in ranks:
            rounds = rounds_of(segments, count, token_budget=SETTINGS.micro_batch_tokens, share=True, cost=cost)
            found[name][str(count)] = balance(rounds)
    return found


def cost(piece: Piece) -> float:
    """Of a model of 4 layers and 128 numbers a state."""
    return 6 * piece.tokens * 4 * (4 * 128**2 + 3 * 128 * 384) + 12 * piece.pairs * 4 * 128


def page(found: dict[str, Any]) -> str:
    """The results for a reader."""
    measured = found["measured"]
    first, *others = measured.values()
    steps = {stage: len(losses) for stage, losses in first["losses"].items()}
    lines = [
        "# The same recipe in one process and in several",
        "",
        f"`python benchmarks/learner_group.py --write`, {found['machine']['cores']} cores, gloo. "
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
        "On one machine's cores processes share what one would use alone, and gain nothing: what is measured is what "
        "dividing costs.",
        "",
        "AdamW divides by the size of what it is given, so where a gradient is nearly nothing its last bits decide a "
        "step. At a rate of 1e-4 in reinforcement, weights that differ in that drew another token now and then: in 0, "
        "1, 6 and 50 of the 64 episodes of updates 1 to 4, whose losses then are of other episodes.",
        "",
        "| step | " + " | ".join(f"loss, gradient's norm of {count}" for count in measured) + " |",
        "| --- |" + " --- |" * len(measured),
    ]
    shown = {stage: range(0, len(losses), 10 if len(losses) > 10 else 1) for stage, losses in first["losses"].items()}
    for stage, places in shown.items():
        for k in places:
            each = " | ".join(
                f"{of['losses'][stage][k]:.7f}, {of['gradients'][stage][k]:.6f}" for of in (first, *others)
            )
            lines.append(f"| {stage} {k + 1} | {each} |")
    lines += ["", "How evenly an update is dealt out: what ranks compute, over what they could in the time the slowest "
              "of each round takes.", "", "| segments | " + " | ".join(f"{n} ranks" for n in DEALT) + " |",
              "| --- |" + " --- |" * len(DEALT)]  # fmt: skip
    for name, even in found["dealing"].items():
        lines.append(f"| {name} | " + " | ".join(f"{even[str(n)]:.1%}" for n in DEALT) + " |")
    lines += [
        "",
        "Tests (`tests/scaling/test_learner_group.py`) hold losses and gradients of 1, 2 and 4 processes within 1e-5 "
        "for packed rows, shared prefixes, critics, preferences and adapters, and checkpoints of 2 that 1 and 4 go on "
        "from.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--muon", action="store_true", help="the demo's own optimiser")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write learner_group.json and learner_group.md")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and counted if they are there already")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        where = given.folder or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        runs = {count: trained(count, where, [] if given.muon else ADAMW) for count in given.processes}
    first = runs[given.processes[0]]
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
    found = {
        "name": "learner_group",
        "measured": measured,
        "dealing": dealt(DEALT),
        "ratios": {},
        "goal": "losses and weights within 1e-5",
        **circumstances(began),
    }
    if given.write:
        (RESULTS / "learner_group.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "learner_group.md").write_text(page(found))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for count, of in measured.items():
        print(
            f"{count} processes: losses {of['loss_apart']:.2g} apart, weights {of['weights_apart']:.2g}; an update "
            f"{of['update_seconds']['supervised'] * 1000:.0f} ms (imitation), "
            f"{of['update_seconds']['reinforcement'] * 1000:.0f} ms (reinforcement); a run {of['run_seconds']:.1f} s, "
            f"{of['run_cpu_seconds']:.1f} s of processors"
        )
    for name, even in found["dealing"].items():
        said = ", ".join(f"{count} ranks {share:.1%}" for count, share in even.items())
        print(f"{name} dealt out: busy {said}")


if __name__ == "__main__":
    main()
