"""Agents of third-party libraries: training without changes, hundreds in sandboxes, and every kind of failure.

python -m benchmarks foreign_agents --write [--runs runs/agents] [--seeds 3] [--verifiers PYTHON] [--mini PROGRAM]

Finished runs are reused. The examples `langgraph_agent`, `agents_sdk_agent` and `verifiers_agent` start from the
warm-up of `own_agent`, because their requests have the same tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from publishing import store_result
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments.external_agent import ExternalAgent
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.trajectory import Task

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TRAINED = ("own_agent", "verifiers_agent", "langgraph_agent", "agents_sdk_agent")
ASK = """
import json, os, sys, urllib.request
def ask(text):
    url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"Content-Type": "application/json"}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(url, body, key)))["choices"][0]["message"]["content"]
print(ask(sys.argv[1]) + ask(sys.argv[1] + " again"))
"""
MINI = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": "/home/agent/mini",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def train(name: str, seed: int, runs: Path, first: Sequence[str]) -> None:
    """Train one run and store its cost."""
    sys.path.insert(0, str(ROOT / "examples"))
    sections: dict[str, Any] = {"seed": seed}
    if name == "own_agent":
        sections |= {"supervised": {"keep_last": 9}, "reinforcement": {"keep_last": 9}}
    else:
        warm = runs / f"own_agent-{seed}" / "checkpoints" / "step-000070"
        sections |= {"policy": {"path": str(warm), "tiny": None}, "supervised": None}
        sections |= {"reinforcement": {"steps": 10}, "evaluation": {"episodes": 120}}
    began, computed = time.time(), time.process_time()
    folder = runs / f"{name}-{seed}"
    importlib.import_module(name).main(*first, str(folder), **sections)
    cost = {"seconds": round(time.time() - began, 1), "cpu_seconds": round(time.process_time() - computed, 1)}
    (folder / "cost.json").write_text(json.dumps(cost))


def outcomes(folder: Path, stage: str) -> dict[str, float]:
    """Return task → success."""
    rows = map(json.loads, (folder / "trajectories" / f"evaluation-{stage}.jsonl").read_text().splitlines())
    return {row["task_id"]: float(row["score"]["success"]) for row in rows if row["score"] is not None}


def summarize_run(folder: Path) -> dict[str, Any]:
    """Return success before and after reinforcement, and the paired difference with its bootstrap interval."""
    first = "supervised" if (folder / "trajectories" / "evaluation-supervised.jsonl").exists() else "untrained"
    before, after = outcomes(folder, first), outcomes(folder, "reinforcement")
    tasks = sorted(before.keys() & after.keys())
    gains = np.array([after[task] - before[task] for task in tasks])
    bootstrap_means = np.random.default_rng(0).choice(gains, (9999, len(gains))).mean(axis=1)
    low, high = np.quantile(bootstrap_means, [0.025, 0.975])
    figures: dict[str, Any] = {
        "begins_with": "nothing" if first == "supervised" else "a warm-up",
        "tasks": len(tasks),
        "before": float(np.mean([before[task] for task in tasks])),
        "after": float(np.mean([after[task] for task in tasks])),
        "gain": float(gains.mean()),
        "interval": [float(low), float(high)],
    }
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures["updates"] = sum(step["stage"] == "reinforcement" for step in steps)
    figures["void_episodes"] = sum(step.get("episode/invalid", 0) for step in steps if step["stage"] == "reinforcement")
    return {**figures, **json.loads((folder / "cost.json").read_text())}


def build_agent(code: str, folder: Path, **options: Any) -> Any:
    """Build an agent that runs a script in a world-readable folder."""
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "agent.py").write_text(code)
    return lambda: ExternalAgent(command=[sys.executable, "agent.py", "{task}"], folder=str(folder), **options)


async def run_many_agents(count: int, folder: Path) -> dict[str, Any]:
    """Run `count` agents in concurrent sandboxes and check that each receives only its own answers."""
    make = build_agent(ASK, folder, sandbox=True)

    async def one(number: int) -> bool:
        def answer(conversation: Sequence[Message], *_: object) -> Message:
            return assistant(f"<{conversation[-1].text}>")

        done = (
            await play_with_policy(make, Task(str(number), f"task {number}", {}), answer, seed=0, max_turns=4)
        ).trajectory
        return done.final.get("answer") == f"<task {number}><task {number} again>"

    began = time.time()
    right = await asyncio.gather(*(one(number) for number in range(count)))
    return {"agents": count, "heard_their_own": sum(right), "seconds": round(time.time() - began, 1)}


async def run_terminal_agents(program: str, count: int, folder: Path) -> dict[str, Any]:
    """Run the installed mini-swe-agent in concurrent sandboxes: it lists files, writes a file and submits."""
    home = str(Path(program).parents[1])
    command = [program, "-m", "openai/policy", "-y", "--exit-immediately", "-t", "{task}", "-o", "/tmp/said.json"]

    def make() -> ExternalAgent:
        return ExternalAgent(
            command=command, variables=MINI, folder=str(folder), sandbox=True, readable=[home, str(Path(sys.prefix))]
        )

    async def one(number: int) -> bool:
        commands = [f"echo {number} > $HOME/n; id -u; cat $HOME/n", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]

        def answer(conversation: Sequence[Message], *_: object) -> Message:
            turn = sum(message.role == "assistant" for message in conversation)
            return assistant("so", ToolCall("bash", json.dumps({"command": commands[min(turn, 1)]})))

        done = (
            await play_with_policy(make, Task(str(number), f"task {number}", {}), answer, seed=0, max_turns=6)
        ).trajectory
        observation_text = done.turns[0].observation[0].text
        return done.final.get("exit") == 0 and f"\\n{number}\\n" in observation_text and len(done.turns) == 2

    began = time.time()
    right = await asyncio.gather(*(one(number) for number in range(count)))
    return {"agents": count, "did_their_task": sum(right), "seconds": round(time.time() - began, 1)}


def page(results: dict[str, Any]) -> str:
    """Return the page of the results."""
    lines = [
        "# Agents of others",
        "",
        "Written by `python -m benchmarks foreign_agents --write`. A product of two-digit numbers, in a call and an",
        "answer, by a Llama of 0.46 million weights. Success on held-out tasks after the warm-up and reinforcement,",
        "and the gain on the same tasks with its 95 % bootstrap interval. Computed: seconds of one core in the process",
        "that trains, evaluations included. Others computed on both cores meanwhile: by the clock it was far longer.",
        "",
        "| agent | seed | from | tasks | updates | before | after | gain | 95 % | computed, s | clock, s | void |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --- | --: | --: | --: |",
    ]
    for run in results["trained"]:
        low, high = run["interval"]
        lines.append(
            f"| `{run['example']}` | {run['seed']} | {run['begins_with']} | {run['tasks']} "
            f"| {run['updates']} | {run['before']:.1%} | {run['after']:.1%} | {run['gain']:+.1%} "
            f"| {low:+.1%} to {high:+.1%} | {run['cpu_seconds']:.0f} "
            f"| {run['seconds']:.0f} | {run['void_episodes']:.0f} |"
        )
    lines += [
        "",
        "From nothing: 70 steps of imitation come first. A warm-up is that of `own_agent` of the same seed. Void:",
        "reinforcement episodes without a score, because a client gave up a call after five seconds without an",
        "answer; since then sixteen agents start at a time.",
        "",
    ]
    if "many" in results:
        part = results["many"]
        lines += [
            f"{part['agents']} commands in concurrent sandboxes, two requests each: {part['heard_their_own']} received "
            f"the answers to their own requests, in {part['seconds']:.0f} s.",
            "",
        ]
    if "terminal" in results:
        part = results["terminal"]
        lines += [
            f"mini-swe-agent as installed, {part['agents']} in concurrent sandboxes: {part['did_their_task']} ran the "
            f"commands of their answers and submitted, in {part['seconds']:.0f} s.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """Run missing parts and print all results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "agents")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=TRAINED, help="train these; without a name, none")
    parser.add_argument("--verifiers", default="", help="interpreter with the package verifiers")
    parser.add_argument("--mini", default=shutil.which("mini") or "", help="mini-swe-agent's program")
    parser.add_argument("--count", type=int, default=200, help="number of concurrent sandboxes")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        train(
            arguments.one[0],
            int(arguments.one[1]),
            arguments.runs,
            [arguments.verifiers] if arguments.one[0] == "verifiers_agent" else [],
        )
        return
    results: dict[str, Any] = {"trained": []}
    for name in TRAINED:
        for seed in range(arguments.seeds):
            folder = arguments.runs / f"{name}-{seed}"
            is_finished = (folder / "cost.json").exists()
            lacks = name == "verifiers_agent" and not arguments.verifiers
            if not is_finished and not lacks and (arguments.only is None or name in arguments.only):
                command = [sys.executable, __file__, "--runs", str(arguments.runs), "--verifiers", arguments.verifiers]
                subprocess.run(
                    [*command, "--one", name, str(seed)], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
                )
            if (folder / "cost.json").exists():
                results["trained"].append({"example": name, "seed": seed, **summarize_run(folder)})
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o755)  # programs in sandboxes run as other users
        if arguments.count:
            results["many"] = asyncio.run(run_many_agents(arguments.count, Path(temporary) / "many"))
        if arguments.mini:
            results["terminal"] = asyncio.run(run_terminal_agents(arguments.mini, 8, Path(temporary)))
    if arguments.write:
        store_result(RESULTS, "agents", results, page)
    print(page(results))


if __name__ == "__main__":
    main()
