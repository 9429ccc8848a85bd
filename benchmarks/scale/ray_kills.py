"""Fault tolerance of distributed runs on Ray: workers, replicas, raylets and whole runs, killed with SIGKILL.

Each run trains a small policy with multi-turn episodes, with two environment workers and two engine replicas on two
raylets. During the run, one of these is killed repeatedly at random moments; sometimes the whole run is killed and
resumed. The weights must be bit-identical to those of an undisturbed run in one process, and each group must be part
of exactly one update.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

import crash
from circumstances import circumstances
from two_raylets import two_raylets
from whetstone.record.checkpoint import latest_checkpoint

KINDS = ("WorkerActor", "ReplicaActor", "raylet")
NAMES = ("workers", "replicas", "raylets with all that is on them", "times everything, the run's process too")
RESULTS = Path(__file__).parents[1] / "results"
OFTEN = (5, 5, 1)
"""Relative frequency of kills per kind; a raylet dies with its actors."""
SPREAD = ["scale=ray", "scale.environment_workers=2", "scale.engine_replicas=2"]


class TimeIsOver(Exception):
    """The time limit was reached; the run was killed and can be resumed."""


def child(overrides: list[str], run_dir: str) -> None:
    """Train or resume on two raylets."""
    with two_raylets(cpus=4, mended=True):
        crash.child(overrides, run_dir, None, None, False)


def list_ray_processes(parent: int | None = None) -> dict[psutil.Process, list[str]]:
    """Return the processes of Ray below a process, by default this one, with their command lines."""
    processes = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words and (words[0].startswith("ray::") or "raylet" in words[0] or "gcs_server" in words[0]):
                    processes[process] = words
    return processes


def kill_one(kind: str, parent: int | None = None, numbers: random.Random | None = None) -> str | None:
    """Kill an actor of a kind and return its name; None if there is none."""
    words = list_ray_processes(parent)
    if kind == "raylet":  # not that of the head node
        those = [p for p, command in words.items() if "raylet" in command[0] and "--head" not in command]
    else:
        those = [p for p, command in words.items() if command[0].startswith(f"ray::{kind}")]
    if not those:
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        (numbers or random.Random(0)).choice(those).kill()
    return kind


def run_with_kills(
    overrides: list[str],
    run_dir: Path,
    numbers: random.Random,
    *,
    kills: int,
    between: tuple[float, float],
    num_full_kills: int,
    longest: float,
    until: float,
    report: Callable[[str], None],
) -> tuple[dict[str, int], int]:
    """Train with kills at random moments and return (kills by kind, processes of Ray that outlived the run).

    Args:
        kills: Maximum kills of workers and replicas over all lives of the run.
        between: Range of seconds between kills.
        whole: Number of kills of the whole run.
        longest: Seconds after which the run counts as hanging.
        until: Time of `time.perf_counter` at which the run is killed, to be resumed later.
        told: Called with a message for each kill.

    Raises:
        RuntimeError: The run hangs or failed.
        TimeIsOver: The time limit was reached, and the run can be resumed.
    """
    context = multiprocessing.get_context("spawn")
    began, processes_seen, kills_path = time.perf_counter(), set[psutil.Process](), run_dir.with_suffix(".struck.json")
    struck = dict.fromkeys((*KINDS, "everything"), 0)
    if kills_path.is_file():
        struck = json.loads(kills_path.read_text())
    else:
        shutil.rmtree(run_dir, ignore_errors=True)
    while True:
        process = context.Process(target=child, args=(overrides, str(run_dir)))
        process.start()
        while process.is_alive():
            process.join(numbers.uniform(*between))
            if time.perf_counter() - began > longest:
                process.kill()
                raise RuntimeError(f"{run_dir.name} did not end within {longest:g} s, after kills {struck}")
            processes_seen |= list_ray_processes(process.pid).keys()
            if process.is_alive() and time.perf_counter() > until:
                os.kill(process.pid or 0, signal.SIGKILL)
                struck["everything"] += 1
                kills_path.write_text(json.dumps(struck))
                report(
                    f"{run_dir.name}, {time.perf_counter() - began:.0f} s: everything, {count_updates(run_dir)} updates"
                )
                psutil.wait_procs(processes_seen, timeout=15)
                raise TimeIsOver
            journal = run_dir / "store" / "journal.jsonl"
            if not process.is_alive() or not journal.is_file():
                continue
            if sum(struck[kind] for kind in KINDS) >= kills // (num_full_kills + 1) * (struck["everything"] + 1):
                if struck["everything"] < num_full_kills:
                    os.kill(process.pid or 0, signal.SIGKILL)
                    struck["everything"] += 1
                    process.join()
                    kills_path.write_text(json.dumps(struck))
                    report(
                        f"{run_dir.name}, {time.perf_counter() - began:.0f} s: everything, "
                        f"{count_updates(run_dir)} updates"
                    )
                continue
            kind = kill_one(numbers.choices(KINDS, OFTEN)[0], process.pid, numbers)
            if kind is not None:
                struck[kind] += 1
                kills_path.write_text(json.dumps(struck))
                report(f"{run_dir.name}, {time.perf_counter() - began:.0f} s: {kind}, {count_updates(run_dir)} updates")
        if process.exitcode == 0:
            _, left = psutil.wait_procs(processes_seen, timeout=15)
            return struck, len(left)
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"a run ended with {process.exitcode}; it should have ended well or been killed")


def count_updates(run_dir: Path) -> int:
    """Return the number of recorded updates of the weights."""
    journal = run_dir / "store" / "journal.jsonl"
    return journal.read_text().count('"consumed"') if journal.is_file() else 0


def measure(
    folder: Path,
    runs: int,
    kills: int,
    seed: int,
    num_full_kills: int,
    seconds: float,
    longest: float,
    patience: float,
    between: tuple[float, float],
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run up to `runs` runs within `seconds`; stored runs of the folder count.

    Each finished run is stored there and reused. A run that exceeds the time is killed, and resumed by the next call.
    """
    began, record = time.perf_counter(), folder / "runs.jsonl"
    rows = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
    torch.set_num_threads(1)  # before any computation: two threads round differently from replicas with one
    model = latest_checkpoint(folder / "policy") or crash.train_speaking_policy(folder / "policy")
    plain = crash.build_overrides("one step off, by recipe", model)
    plain.append(f"reinforcement.steps={crash.STEPS}")
    if not (folder / "alone" / "summary.json").is_file():
        shutil.rmtree(folder / "alone", ignore_errors=True)
        crash.child(plain, str(folder / "alone"), None, None, False)
    expected = crash.load_weights(folder / "alone")
    for number in range(len(rows), runs):
        if time.perf_counter() - began > seconds:
            report(f"time limit of {seconds:g} s reached after {number} runs")
            break
        run_dir, run_began = folder / f"run-{number}", time.perf_counter()
        try:
            struck, left = run_with_kills(
                [*plain, *SPREAD, f"scale.start_timeout_seconds={patience}"],
                run_dir,
                random.Random(f"{seed}-{number}-{count_updates(run_dir)}"),
                kills=kills,
                between=between,
                num_full_kills=num_full_kills,
                longest=longest,
                until=began + seconds,
                report=report,
            )
        except TimeIsOver:
            report(f"time limit of {seconds:g} s reached in run {number}")
            break
        crash.check_accounting(run_dir)
        weights = crash.load_weights(run_dir)
        row = {
            "by_kind": struck,
            "bit_identical": all(torch.equal(value, weights[name]) for name, value in expected.items()),
            "left": left,
            "seconds": time.perf_counter() - run_began,
        }
        rows.append(row)
        with record.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        report(f"run {number + 1}: {row}")
    return rows


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals over all runs; each stored run ended with nothing lost or duplicated."""
    by_kind = {kind: sum(row["by_kind"][kind] for row in rows) for kind in (*KINDS, "everything")}
    return {
        "runs": len(rows),
        "kills": sum(by_kind.values()),
        "by_kind": by_kind,
        "accounted": len(rows),
        "bit_identical": sum(row["bit_identical"] for row in rows),
        "left": sum(row["left"] for row in rows),
        "run_seconds": [row["seconds"] for row in rows],
    }


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    totals, words = result["measured"], dict(zip((*KINDS, "everything"), NAMES, strict=True))
    struck = ", ".join(f"{count} {words[kind]}" for kind, count in totals["by_kind"].items())
    runs = totals["runs"]
    return "\n".join(
        [
            "# Killed again and again on Ray",
            "",
            f"`{result['command']}`, {result['machine']['cores']} cores: two environment workers and two engine "
            "replicas on two raylets, SIGKILL at random moments.",
            "",
            "| what | found |",
            "| --- | --- |",
            f"| runs of {result['steps']} updates | {runs} |",
            f"| kills | {totals['kills']}: {struck} |",
            f"| runs that continued, or were resumed, to their end | {runs} |",
            f"| with nothing lost or duplicated, by the journal | {totals['accounted']} |",
            f"| with weights bit-identical to an undisturbed run in one process | {totals['bit_identical']} |",
            f"| processes of Ray left 15 s after a run | {totals['left']} |",
            f"| mean seconds per run | {sum(totals['run_seconds']) / max(1, runs):.0f} |",
            "",
        ]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="kills of workers and replicas per run")
    parser.add_argument("--whole", type=int, default=1, help="number of kills of the whole run")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of all runs; resume with --folder")
    parser.add_argument("--longest", type=float, default=600.0, help="seconds after which a run counts as hanging")
    parser.add_argument("--pause", type=float, default=8.0, help="maximum seconds between two kills")
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds within which a dead actor must be replaced"
    )
    parser.add_argument("--steps", type=int, default=crash.STEPS, help="updates of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write raw/ray_kills.json and ray_kills.md into results")
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    arguments = parser.parse_args()
    crash.STEPS = arguments.steps
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(
            folder,
            arguments.runs,
            arguments.kills,
            arguments.seed,
            arguments.whole,
            arguments.seconds,
            arguments.longest,
            arguments.patience,
            (arguments.pause / 4, arguments.pause),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    totals = summarize(rows)
    result = {
        "name": "ray_kills",
        "measured": totals,
        "ratios": {"bit_identical": totals["bit_identical"] / max(1, totals["runs"])},
        "goal": "every run continues or is resumed, nothing lost or doubled, the weights of an undisturbed run",
        "bound": "1",
        "command": f"python -m benchmarks ray_kills --runs {arguments.runs} --kills {arguments.kills} "
        f"--pause {arguments.pause:g} --steps {arguments.steps} --write",
        "steps": arguments.steps,
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "raw" / "ray_kills.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "ray_kills.md").write_text(page(result))
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{totals['kills']} kills ({totals['by_kind']}) in {totals['runs']} runs: all ended, nothing lost or "
        f"duplicated; {totals['bit_identical']} of {totals['runs']} with the weights of an undisturbed run; "
        f"{totals['left']} processes left"
    )


if __name__ == "__main__":
    main()
