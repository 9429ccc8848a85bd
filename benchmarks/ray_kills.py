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
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

import crash
from circumstances import circumstances
from two_raylets import two_raylets

KINDS = ("WorkerActor", "ReplicaActor", "raylet")
OFTEN = (5, 5, 1)
"""How often each is struck: a raylet takes its actors along."""
SPREAD = ["scale=ray", "scale.environment_workers=2", "scale.engine_replicas=2"]


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
) -> tuple[dict[str, int], int]:
    """Train with kills at random moments; (how many of each there were, processes of Ray that outlived the run).

    Args:
        kills: Of workers and replicas, at most, over all lives of the run.
        between: Seconds from one to the next.
        whole: How often all of it is killed.
        longest: Seconds after which it counts as hanging.

    Raises:
        RuntimeError: It hangs, or ended in an error.
    """
    context = multiprocessing.get_context("spawn")
    began, seen = time.perf_counter(), set[psutil.Process]()
    struck = dict.fromkeys((*KINDS, "everything"), 0)
    while True:
        process = context.Process(target=child, args=(overrides, str(run_dir)))
        process.start()
        while process.is_alive():
            process.join(numbers.uniform(*between))
            if time.perf_counter() - began > longest:
                process.kill()
                raise RuntimeError(f"{run_dir.name} was not over after {longest:g} s, behind kills {struck}")
            seen |= of_ray(process.pid).keys()
            journal = run_dir / "store" / "journal.jsonl"
            if not process.is_alive() or not journal.is_file():
                continue
            if sum(struck[kind] for kind in KINDS) >= kills // (whole + 1) * (struck["everything"] + 1):
                if struck["everything"] < whole:
                    os.kill(process.pid or 0, signal.SIGKILL)
                    struck["everything"] += 1
                    process.join()
                continue
            kind = kill_one(numbers.choices(KINDS, OFTEN)[0], process.pid, numbers)
            if kind is not None:
                struck[kind] += 1
        if process.exitcode == 0:
            _, left = psutil.wait_procs(seen, timeout=15)
            return struck, len(left)
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"a run ended with {process.exitcode}; it should have ended well or been killed")


def measure(
    runs: int,
    kills: int,
    seed: int,
    whole: int,
    seconds: float,
    longest: float,
    between: tuple[float, float],
    told: Callable[[str], None],
) -> dict[str, Any]:
    """So many runs, or as many as begin within so many seconds."""
    numbers, began = random.Random(seed), time.perf_counter()
    found: dict[str, Any] = {"runs": 0, "kills": 0, "accounted": 0, "bit_identical": 0, "by_kind": {}, "left": 0}
    with tempfile.TemporaryDirectory() as folder:
        model = crash.speaking(Path(folder) / "policy")
        plain = crash.overrides_of("one step off, by recipe", model)
        plain.append(f"reinforcement.steps={crash.STEPS}")
        crash.child(plain, str(Path(folder) / "alone"), None, None, False)
        expected = crash.weights(Path(folder) / "alone")
        for number in range(runs):
            if time.perf_counter() - began > seconds:
                told(f"{seconds:g} s are over after {number} runs")
                break
            run_dir = Path(folder) / f"run-{number}"
            struck, left = one_run(
                [*plain, *SPREAD], run_dir, numbers, kills=kills, between=between, whole=whole, longest=longest
            )
            crash.accounted(run_dir)
            found["runs"] += 1
            found["accounted"] += 1
            found["kills"] += sum(struck.values())
            for kind, count in struck.items():
                found["by_kind"][kind] = found["by_kind"].get(kind, 0) + count
            there = crash.weights(run_dir)
            found["bit_identical"] += all(torch.equal(value, there[name]) for name, value in expected.items())
            found["left"] += left
            told(f"run {number + 1}: {struck}; {found}")
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="of workers and replicas in each run")
    parser.add_argument("--whole", type=int, default=1, help="how often all of a run is killed and resumed")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no run begins")
    parser.add_argument("--longest", type=float, default=600.0, help="seconds after which a run counts as hanging")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two kills at most")
    parser.add_argument("--steps", type=int, default=crash.STEPS, help="updates of a run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    crash.STEPS = arguments.steps
    began = time.perf_counter()
    found = measure(
        arguments.runs,
        arguments.kills,
        arguments.seed,
        arguments.whole,
        arguments.seconds,
        arguments.longest,
        (arguments.pause / 4, arguments.pause),
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    said = {
        "name": "ray_kills",
        "measured": found,
        "ratios": {"bit_identical": found["bit_identical"] / max(1, found["runs"])},
        "goal": "every run goes on or is resumed, nothing lost or doubled, the weights of a run nobody killed",
        "bound": "1",
        **circumstances(began),
    }
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
