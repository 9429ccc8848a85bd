"""Agents of other people's libraries trained as they are, run in a sandbox by the hundred, and failing in every way.

python benchmarks/foreign_agents.py --write [--runs runs/agents] [--seeds 3] [--verifiers PYTHON] [--mini PROGRAM]

Runs that are there already are taken as they are. The examples `langgraph_agent`, `agents_sdk_agent` and
`verifiers_agent` go on from the warm-up of `own_agent`: what they ask is the same, token for token.
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

from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments.agent import Agent
from whetstone.evaluation.contract import play
from whetstone.trajectory import Task

ROOT = Path(__file__).parents[1]
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
    """One run, and what it cost."""
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
    """By task, whether it was solved."""
    rows = map(json.loads, (folder / "trajectories" / f"evaluation-{stage}.jsonl").read_text().splitlines())
    return {row["task_id"]: float(row["score"]["success"]) for row in rows if row["score"] is not None}


def came_to(folder: Path) -> dict[str, Any]:
    """Success before and behind reinforcement, and the difference on the same tasks with its bootstrap interval."""
    first = "supervised" if (folder / "trajectories" / "evaluation-supervised.jsonl").exists() else "untrained"
    before, after = outcomes(folder, first), outcomes(folder, "reinforcement")
    tasks = sorted(before.keys() & after.keys())
    gains = np.array([after[task] - before[task] for task in tasks])
    drawn = np.random.default_rng(0).choice(gains, (9999, len(gains))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    found: dict[str, Any] = {
        "begins_with": "nothing" if first == "supervised" else "a warm-up",
        "tasks": len(tasks),
        "before": float(np.mean([before[task] for task in tasks])),
        "after": float(np.mean([after[task] for task in tasks])),
        "gain": float(gains.mean()),
        "interval": [float(low), float(high)],
    }
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["updates"] = sum(step["stage"] == "reinforcement" for step in steps)
    found["void_episodes"] = sum(step.get("episode/invalid", 0) for step in steps if step["stage"] == "reinforcement")
    return {**found, **json.loads((folder / "cost.json").read_text())}


def agent_of(code: str, folder: Path, **options: Any) -> Any:
    """Makes an agent that runs a script in a folder that anybody may read."""
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "agent.py").write_text(code)
    return lambda: Agent(command=[sys.executable, "agent.py", "{task}"], folder=str(folder), **options)


async def many(count: int, folder: Path) -> dict[str, Any]:
    """So many agents in sandboxes at once, each of which must hear its own answers alone."""
    make = agent_of(ASK, folder, sandbox=True)

    async def one(number: int) -> bool:
        def answer(conversation: Sequence[Message], *_: object) -> Message:
            return assistant(f"<{conversation[-1].text}>")

        done = (await play(make, Task(str(number), f"task {number}", {}), answer, seed=0, max_turns=4)).trajectory
        return done.final.get("answer") == f"<task {number}><task {number} again>"

    began = time.time()
    right = await asyncio.gather(*(one(number) for number in range(count)))
    return {"agents": count, "heard_their_own": sum(right), "seconds": round(time.time() - began, 1)}


async def terminal(program: str, count: int, folder: Path) -> dict[str, Any]:
    """mini-swe-agent as it is installed, in sandboxes side by side: it looks, writes a file, and hands in."""
    home = str(Path(program).parents[1])
    command = [program, "-m", "openai/policy", "-y", "--exit-immediately", "-t", "{task}", "-o", "/tmp/said.json"]

    def make() -> Agent:
        return Agent(
            command=command, variables=MINI, folder=str(folder), sandbox=True, readable=[home, str(Path(sys.prefix))]
        )

    async def one(number: int) -> bool:
        commands = [f"echo {number} > $HOME/n; id -u; cat $HOME/n", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]

        def answer(conversation: Sequence[Message], *_: object) -> Message:
            turn = sum(message.role == "assistant" for message in conversation)
            return assistant("so", ToolCall("bash", json.dumps({"command": commands[min(turn, 1)]})))

        done = (await play(make, Task(str(number), f"task {number}", {}), answer, seed=0, max_turns=6)).trajectory
        seen = done.turns[0].observation[0].text
        return done.final.get("exit") == 0 and f"\\n{number}\\n" in seen and len(done.turns) == 2

    began = time.time()
    right = await asyncio.gather(*(one(number) for number in range(count)))
    return {"agents": count, "did_their_task": sum(right), "seconds": round(time.time() - began, 1)}


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Agents of others",
        "",
        "Written by `python benchmarks/foreign_agents.py --write`. A product of two-digit numbers, in a call and an",
        "answer, by a Llama of 0.46 million weights. Success on held-out tasks behind the warm-up and reinforcement,",
        "and the gain on the same tasks with its 95 % bootstrap interval. Computed: seconds of one core in the process",
        "that trains, evaluations included. Others computed on both cores meanwhile: by the clock it was far longer.",
        "",
        "| agent | seed | from | tasks | updates | before | after | gain | 95 % | computed, s | clock, s | void |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --- | --: | --: | --: |",
    ]
    for run in found["trained"]:
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
        "episodes of reinforcement without a score, where a client gave up a call that nobody answered for five",
        "seconds; since then agents begin sixteen at a time.",
        "",
    ]
    if "many" in found:
        told = found["many"]
        lines += [
            f"{told['agents']} commands in sandboxes at once, two requests each: {told['heard_their_own']} heard the "
            f"answers to their own requests, in {told['seconds']:.0f} s.",
            "",
        ]
    if "terminal" in found:
        told = found["terminal"]
        lines += [
            f"mini-swe-agent as installed, {told['agents']} in sandboxes at once: {told['did_their_task']} ran the "
            f"commands they were answered and handed in, in {told['seconds']:.0f} s.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """What is missing is run; what there is is shown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "agents")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=TRAINED, help="train these; without a name, none")
    parser.add_argument("--verifiers", default="", help="the interpreter that has the package verifiers")
    parser.add_argument("--mini", default=shutil.which("mini") or "", help="mini-swe-agent's program")
    parser.add_argument("--count", type=int, default=200, help="commands in sandboxes at once")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        train(
            given.one[0], int(given.one[1]), given.runs, [given.verifiers] if given.one[0] == "verifiers_agent" else []
        )
        return
    found: dict[str, Any] = {"trained": []}
    for name in TRAINED:
        for seed in range(given.seeds):
            folder = given.runs / f"{name}-{seed}"
            there = (folder / "cost.json").exists()
            lacks = name == "verifiers_agent" and not given.verifiers
            if not there and not lacks and (given.only is None or name in given.only):
                again = [sys.executable, __file__, "--runs", str(given.runs), "--verifiers", given.verifiers]
                subprocess.run(
                    [*again, "--one", name, str(seed)], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
                )
            if (folder / "cost.json").exists():
                found["trained"].append({"example": name, "seed": seed, **came_to(folder)})
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o755)  # programs in sandboxes are other users
        if given.count:
            found["many"] = asyncio.run(many(given.count, Path(temporary) / "many"))
        if given.mini:
            found["terminal"] = asyncio.run(terminal(given.mini, 8, Path(temporary)))
    if given.write:
        (RESULTS / "agents.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "agents.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
