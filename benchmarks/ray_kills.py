"""Does a run that is spread over Ray go on, whoever of it dies? Workers, replicas and all of it, killed by SIGKILL.

Each run trains a small policy whose episodes have several turns, with two environment workers and two engine replicas
on two raylets. While it goes on, one of these is killed again and again at random moments; now and then everything,
which is then resumed. The weights must be those of a run in one process that nobody killed, bit for bit, and each group
must have gone into exactly one update.
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
RESULTS = Path(__file__).parent / "results"
OFTEN = (5, 5, 1)
"""How often each is struck: a raylet takes its actors along."""
SPREAD = ["scale=ray", "scale.environment_workers=2", "scale.engine_replicas=2"]


class TimeIsOver(Exception):
    """A run was killed with everything, and is to be gone on with."""


def child(overrides: list[str], run_dir: str) -> None:
    """Train, or go on, on two raylets."""
    with two_raylets(cpus=4, mended=True):
        crash.child(overrides, run_dir, None, None, False)


def of_ray(parent: int | None = None) -> dict[psutil.Process, list[str]]:
    """What Ray runs below a process, this one unless another is named, each with its command line."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words and (words[0].startswith("ray::") or "raylet" in words[0] or "gcs_server" in words[0]):
                    found[process] = words
    return found


def kill_one(kind: str, parent: int | None = None, numbers: random.Random | None = None) -> str | None:
    """Kill an actor of a kind; None where there is none."""
    words = of_ray(parent)
    if kind == "raylet":  # of the node that is not the head
        those = [p for p, said in words.items() if "raylet" in said[0] and "--head" not in said]
    else:
        those = [p for p, said in words.items() if said[0].startswith(f"ray::{kind}")]
    if not those:
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        (numbers or random.Random(0)).choice(those).kill()
    return kind


def one_run(
    overrides: list[str],
    run_dir: Path,
    numbers: random.Random,
    *,
    kills: int,
    between: tuple[float, float],
    whole: int,
    longest: float,
    until: float,
    told: Callable[[str], None],
) -> tuple[dict[str, int], int]:
    """Train with kills at random moments; (how many of each there were, processes of Ray that outlived the run).

    Args:
        kills: Of workers and replicas, at most, over all lives of the run.
        between: Seconds from one to the next.
        whole: How often all of it is killed.
        longest: Seconds after which it counts as hanging.
        until: By the clock of `time.perf_counter`, when it is killed with everything, to be gone on with.
        told: Told of each kill.

    Raises:
        RuntimeError: It hangs, or ended in an error.
        TimeIsOver: There is no time left, and the run is to be gone on with.
    """
    context = multiprocessing.get_context("spawn")
    began, seen, kept = time.perf_counter(), set[psutil.Process](), run_dir.with_suffix(".struck.json")
    struck = dict.fromkeys((*KINDS, "everything"), 0)
    if kept.is_file():
        struck = json.loads(kept.read_text())
    else:
        shutil.rmtree(run_dir, ignore_errors=True)
    while True:
        process = context.Process(target=child, args=(overrides, str(run_dir)))
        process.start()
        while process.is_alive():
            process.join(numbers.uniform(*between))
            if time.perf_counter() - began > longest:
                process.kill()
                raise RuntimeError(f"{run_dir.name} was not over after {longest:g} s, behind kills {struck}")
            seen |= of_ray(process.pid).keys()
            if process.is_alive() and time.perf_counter() > until:
                os.kill(process.pid or 0, signal.SIGKILL)
                struck["everything"] += 1
                kept.write_text(json.dumps(struck))
                told(f"{run_dir.name}, {time.perf_counter() - began:.0f} s: everything, {updates(run_dir)} updates")
                psutil.wait_procs(seen, timeout=15)
                raise TimeIsOver
            journal = run_dir / "store" / "journal.jsonl"
            if not process.is_alive() or not journal.is_file():
                continue
            if sum(struck[kind] for kind in KINDS) >= kills // (whole + 1) * (struck["everything"] + 1):
                if struck["everything"] < whole:
                    os.kill(process.pid or 0, signal.SIGKILL)
                    struck["everything"] += 1
                    process.join()
                    kept.write_text(json.dumps(struck))
                    told(f"{run_dir.name}, {time.perf_counter() - began:.0f} s: everything, {updates(run_dir)} updates")
                continue
            kind = kill_one(numbers.choices(KINDS, OFTEN)[0], process.pid, numbers)
            if kind is not None:
                struck[kind] += 1
                kept.write_text(json.dumps(struck))
                told(f"{run_dir.name}, {time.perf_counter() - began:.0f} s: {kind}, {updates(run_dir)} updates")
        if process.exitcode == 0:
            _, left = psutil.wait_procs(seen, timeout=15)
            return struck, len(left)
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"a run ended with {process.exitcode}; it should have ended well or been killed")


def updates(run_dir: Path) -> int:
    """Of the weights, that are on record."""
    journal = run_dir / "store" / "journal.jsonl"
    return journal.read_text().count('"consumed"') if journal.is_file() else 0


def measure(
    folder: Path,
    runs: int,
    kills: int,
    seed: int,
    whole: int,
    seconds: float,
    longest: float,
    patience: float,
    between: tuple[float, float],
    told: Callable[[str], None],
) -> list[dict[str, Any]]:
    """So many runs, or as much of them as so many seconds allow; those that are told of in the folder count.

    Each is on record there as soon as it is over, and none is played again. One that has no time left is killed, as
    others are, and gone on with when the bench is called again.
    """
    began, record = time.perf_counter(), folder / "runs.jsonl"
    found = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
    torch.set_num_threads(1)  # before anything computes: two threads round a last bit otherwise than replicas with one
    model = latest_checkpoint(folder / "policy") or crash.speaking(folder / "policy")
    plain = crash.overrides_of("one step off, by recipe", model)
    plain.append(f"reinforcement.steps={crash.STEPS}")
    if not (folder / "alone" / "summary.json").is_file():
        shutil.rmtree(folder / "alone", ignore_errors=True)
        crash.child(plain, str(folder / "alone"), None, None, False)
    expected = crash.weights(folder / "alone")
    for number in range(len(found), runs):
        if time.perf_counter() - began > seconds:
            told(f"{seconds:g} s are over after {number} runs")
            break
        run_dir, run_began = folder / f"run-{number}", time.perf_counter()
        try:
            struck, left = one_run(
                [*plain, *SPREAD, f"scale.start_timeout_seconds={patience}"],
                run_dir,
                random.Random(f"{seed}-{number}-{updates(run_dir)}"),
                kills=kills,
                between=between,
                whole=whole,
                longest=longest,
                until=began + seconds,
                told=told,
            )
        except TimeIsOver:
            told(f"{seconds:g} s are over in run {number}")
            break
        crash.accounted(run_dir)
        there = crash.weights(run_dir)
        row = {
            "by_kind": struck,
            "bit_identical": all(torch.equal(value, there[name]) for name, value in expected.items()),
            "left": left,
            "seconds": time.perf_counter() - run_began,
        }
        found.append(row)
        with record.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        told(f"run {number + 1}: {row}")
    return found


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the runs come to; each that is on record ended, with nothing lost or doubled."""
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


def page(said: dict[str, Any]) -> str:
    """The results for a reader."""
    found, words = said["measured"], dict(zip((*KINDS, "everything"), NAMES, strict=True))
    struck = ", ".join(f"{count} {words[kind]}" for kind, count in found["by_kind"].items())
    runs = found["runs"]
    return "\n".join(
        [
            "# Killed again and again on Ray",
            "",
            f"`{said['command']}`, {said['machine']['cores']} cores: two environment workers and two engine replicas "
            "on two raylets, SIGKILL at random moments.",
            "",
            "| what | found |",
            "| --- | --- |",
            f"| runs of {said['steps']} updates | {runs} |",
            f"| kills | {found['kills']}: {struck} |",
            f"| runs that went on, or were resumed, to their end | {runs} |",
            f"| with nothing lost or doubled, by the record's own account | {found['accounted']} |",
            f"| in the weights of a run in one process that nobody killed, bit for bit | {found['bit_identical']} |",
            f"| processes of Ray left 15 s after a run | {found['left']} |",
            f"| seconds of a run, in the mean | {sum(found['run_seconds']) / max(1, runs):.0f} |",
            "",
        ]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="of workers and replicas in each run")
    parser.add_argument("--whole", type=int, default=1, help="how often all of a run is killed and resumed")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all runs; --folder goes on")
    parser.add_argument("--longest", type=float, default=600.0, help="seconds after which a run counts as hanging")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two kills at most")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds in which what died has to be back")
    parser.add_argument("--steps", type=int, default=crash.STEPS, help="updates of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write ray_kills.json and ray_kills.md into results")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and counted if they are there already")
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
    found = summed(rows)
    said = {
        "name": "ray_kills",
        "measured": found,
        "ratios": {"bit_identical": found["bit_identical"] / max(1, found["runs"])},
        "goal": "every run goes on or is resumed, nothing lost or doubled, the weights of a run nobody killed",
        "bound": "1",
        "command": f"python benchmarks/ray_kills.py --runs {arguments.runs} --kills {arguments.kills} "
        f"--pause {arguments.pause:g} --steps {arguments.steps} --write",
        "steps": arguments.steps,
        **circumstances(began),
    }
    if arguments.write:
        (RESULTS / "ray_kills.json").write_text(json.dumps(said, indent=1) + "\n")
        (RESULTS / "ray_kills.md").write_text(page(said))
    if arguments.json:
        print(json.dumps(said))
        return
    print(
        f"{found['kills']} kills ({found['by_kind']}) in {found['runs']} runs: all ended, nothing lost or doubled; "
        f"{found['bit_identical']} of {found['runs']} in the weights of a run nobody killed; "
        f"{found['left']} processes left"
    )


if __name__ == "__main__":
    main()
