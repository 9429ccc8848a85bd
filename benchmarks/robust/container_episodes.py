"""Episodes with container tools: a training run of 64 episodes whose shell runs in podman containers.

python -m benchmarks container_episodes --image IMAGE --write

A tiny policy learns `cat NAME` from demonstrations in namespaces; the measured run continues with reinforcement, where
each episode has its own container. Columns: commands that the policy ran, seconds of the run, median seconds from the
pool to the episode, and containers that remain after it.

`--only sessions` measures 64 sessions that take a container at the same time, each of which runs a command, and keeps
the stored figures of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from circumstances import circumstances
from publishing import store_result
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.sandbox import ContainerOptions, ContainerPool, Ending, shared_containers
from whetstone.sandbox.containers.container_options import parse_container_options
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.sandbox.containers.warm_pool import WarmPool
from whetstone.training import train
from whetstone.trajectory import Task
from whetstone.trajectory_json import decode_trajectories

RESULTS = Path(__file__).parents[1] / "results"
NAMES = "abcd"
OWN = [
    "policy.tiny={vocab_size: 340, hidden_size: 96, num_layers: 2, num_heads: 4, intermediate_size: 256, "
    "context_length: 512}",
    "ablations=null",
]


class FileTasks:
    """Task source: answer with the number in a file. The expert prints the file."""

    def task(self, index: int) -> Task:
        """Return task `index`."""
        draw = Random(f"container_episodes:{index}")
        name, number = draw.choice(NAMES), draw.randint(0, 9)
        return Task(f"file-{index}", f"file {name}", {"answer": number, "files": {name: f"{number}\n"}})

    def held_out(self, count: int) -> Sequence[Task]:
        """Return held-out tasks."""
        return [self.task(1_000_000 + number) for number in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Print the file, then answer."""
        if any(message.role == "tool" for message in conversation):
            return assistant(str(task.private["answer"]))
        (name,) = task.private["files"]
        return assistant("", ToolCall("shell", json.dumps({"command": f"cat {name}"})))


def recipe_for(sandbox: Any, *settings: str, start_from: str = "") -> Any:
    """Return the recipe with a sandbox."""
    return load_recipe(
        "demo",
        [*(OWN[1:] if start_from else OWN), *settings, *([f"start_from={start_from}"] if start_from else [])],
        tasks={"source": "container_episodes:FileTasks"},
        environment={"tools": [{"name": "shell", "sandbox": sandbox}], "max_turns": 3, "max_calls_per_turn": 1},
    )


def measure_run(folder: Path, warm_up: Path, image: str, warm: int) -> dict[str, Any]:
    """Train 64 episodes in containers and return the measurements."""
    waits: list[float] = []
    take = WarmPool.take

    async def measure_take(self: WarmPool, limits: Any) -> Any:
        began = time.perf_counter()
        place = await take(self, limits)
        waits.append(time.perf_counter() - began)
        return place

    commands: list[float] = []
    shell = ContainerSession.shell

    async def measure_shell(self: ContainerSession, command: str, **more: Any) -> Any:
        outcome = await shell(self, command, **more)
        commands.append(outcome.seconds)
        return outcome

    WarmPool.take, ContainerSession.shell = measure_take, measure_shell  # type: ignore[method-assign]
    sandbox = {"container": "podman", "image": image, "warm_containers": warm}
    steps = ["supervised=null", "reinforcement.steps=2", "reinforcement.tasks_per_step=4", "rollout.group_size=8"]
    recipe = recipe_for(sandbox, *steps, "evaluation.episodes=1", start_from=str(warm_up))
    began = time.perf_counter()
    try:
        train(recipe, folder, progress=Progress(quiet=True))
    finally:
        WarmPool.take, ContainerSession.shell = take, shell  # type: ignore[method-assign]
    seconds = time.perf_counter() - began
    shared_containers(parse_container_options(sandbox)).close()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for path in sorted((folder / "trajectories").glob("step-*.jsonl")) for line in path.open("rb")]
    episodes = decode_trajectories(lines)
    return {
        "warm_containers": warm,
        "episodes": len(episodes),
        "invalid": sum(each.get("episode/invalid", 0) for each in metrics),
        "containers": len(waits),
        "commands": len(commands),
        "left": count_containers(),
        "seconds": round(seconds, 1),
        "take_ms": round(1000 * statistics.median(waits), 1) if waits else None,
        "most_take_ms": round(1000 * max(waits), 1) if waits else None,
        "command_ms": round(1000 * statistics.median(commands), 1) if commands else None,
    }


def measure_sessions(image: str, sessions: int, warm: int) -> dict[str, Any]:
    """Let sessions take a container and run a command at the same time, and return the measurements."""
    pool = ContainerPool(ContainerOptions(container="podman", image=image, warm_containers=warm))

    async def take(session: ContainerSession) -> float:
        began = time.perf_counter()
        await session.start()
        return time.perf_counter() - began

    async def serve(session: ContainerSession, number: int) -> bool:
        outcome = await session.shell(f"cat /tmp/mark; echo {number} > /tmp/mark; cat /tmp/mark")
        lines = outcome.output.splitlines()  # the first one is that there is no such file
        return outcome.ending is Ending.OK and len(lines) == 2 and lines[1] == str(number)

    async def run() -> dict[str, Any]:
        opened = [pool.session() for _ in range(sessions)]  # the first one fills the pool
        while True:
            await asyncio.sleep(2)
            if count_containers(running=True) >= warm:
                break
        load, processor = os.getloadavg()[0], time.process_time()
        waits = await asyncio.gather(*map(take, opened))
        processor, began = time.process_time() - processor, time.perf_counter()
        served = await asyncio.gather(*map(serve, opened, range(sessions)))
        for session in opened:
            session.close()
        return {
            "served": sum(served),
            "take_ms": round(1000 * statistics.median(waits), 1),
            "p95_take_ms": round(1000 * statistics.quantiles(waits, n=20, method="inclusive")[-1], 1),
            "most_take_ms": round(1000 * max(waits), 1),
            "processor_ms": round(1000 * processor / sessions, 2),
            "command_seconds": round(time.perf_counter() - began, 1),
            "load": round(load, 1),
        }

    try:
        measured = asyncio.run(run())
    finally:
        pool.close()
    return {"warm_containers": warm, "sessions": sessions, **measured, "left": count_containers()}


def count_containers(*, running: bool = False) -> int:
    """Return the number of containers of this process, by default also of those that do not run."""
    words = ["podman", "ps", "-q" if running else "-aq", "--filter", f"name=whetstone-{os.getpid()}-"]
    return len(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def page(report: dict[str, Any]) -> str:
    """Return the page of the results."""
    lines = [
        "# Episodes with container tools",
        "",
        "Written by `python -m benchmarks container_episodes --image IMAGE --write`. Two steps of 32 episodes of a",
        "tiny policy, whose tool `shell` runs in a podman container per episode. Commands: calls that the policy",
        "made. To a container: median and maximum time from the request of an episode to its container.",
        f"{report['machine']['cores']} cores of {report['machine']['processor']}; load {report['load']} at the start.",
        "",
        "| `warm_containers` | episodes | invalid | containers | commands | seconds | to a container, ms (maximum) "
        "| a command, ms | containers left |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {run['warm_containers']} | {run['episodes']} | {run['invalid']} | {run['containers']} | {run['commands']} "
        f"| {run['seconds']:.0f} | {run['take_ms']} ({run['most_take_ms']}) | {run['command_ms']} | {run['left']} |"
        for run in report["measured"]
    ]
    lines += [
        "",
        "32 episodes start at the same time: a pool of 8 serves the first 8 of them at once, the others wait for the",
        "start of their containers, two of which start at a time.",
    ]
    if not (sessions := report.get("sessions")):
        return "\n".join([*lines, ""])
    lines += [
        "",
        "## 64 sessions at the same time",
        "",
        "64 sessions take a container at the same time and then run a command at the same time. Served: sessions whose",
        "command ran, in a container without a file of another one. Processor: time of this process per session while",
        "the containers are taken.",
        "",
        "| `warm_containers` | sessions | served | to a container, ms: median | p95 | maximum | processor, ms "
        "| all commands, s | load | containers left |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {run['warm_containers']} | {run['sessions']} | {run['served']} | {run['take_ms']} | {run['p95_take_ms']} "
        f"| {run['most_take_ms']} | {run['processor_ms']} | {run['command_seconds']} | {run['load']} | {run['left']} |"
        for run in sessions
    ]
    return "\n".join([*lines, ""])


def measure_runs(image: str, trained: Path | None) -> list[dict[str, Any]]:
    """Return the measurements of runs without and with a pool, after a warm-up that is trained if it is missing."""
    with tempfile.TemporaryDirectory(prefix="container-episodes-") as place:
        warm_up = trained or Path(place) / "warm-up"
        settings = ["supervised.steps=60", "reinforcement.steps=1", "reinforcement.tasks_per_step=1"]
        if not (warm_up / "summary.json").is_file():
            train(recipe_for("auto", *settings, "evaluation.episodes=8"), warm_up, progress=Progress(quiet=True))
        return [measure_run(Path(place) / f"run-{warm}", warm_up, image, warm) for warm in (0, 8)]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="local image with sh and cat")
    parser.add_argument("--warm-up", type=Path, help="run directory of the warm-up, which is trained if it is missing")
    parser.add_argument("--only", choices=("runs", "sessions"), help="measure one of them, and keep the other")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    began, load = time.perf_counter(), round(os.getloadavg()[0], 1)
    stored = json.loads((RESULTS / "raw" / "container_episodes.json").read_text())
    report = {**stored, "name": "container_episodes"}
    if arguments.only != "sessions":
        report |= {"measured": measure_runs(arguments.image, arguments.warm_up), "load": load, **circumstances(began)}
    if arguments.only != "runs":
        report["sessions"] = [measure_sessions(arguments.image, 64, warm) for warm in (64, 0)]
    if arguments.write:
        store_result(RESULTS, "container_episodes", report, page)
    print(page(report))


if __name__ == "__main__":
    main()
