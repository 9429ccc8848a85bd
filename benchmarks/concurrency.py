"""What does an episode cost that waits for its tool? And does memory stay flat over many short ones?

Thousands of episodes wait at once in one process: resident memory for each, and how late the event loop is. Then
tens of thousands of short episodes through the engine: resident memory as it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.assembly import Assembly, assemble
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.inference import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.rollout import Independent, plans_of
from whetstone.trajectory import Score, Task, Trajectory


def resident_bytes() -> int:
    """Memory of this process in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@dataclass
class Waiting:
    """An environment whose first step waits until it is told to go on."""

    gate: asyncio.Event
    waiting: asyncio.Semaphore
    """Released by each that waits."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment.reset`."""
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """See `Environment.step`."""
        self.waiting.release()
        # as a tool does: a timer that ticks, not only an event somebody sets
        while not self.gate.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await self.gate.wait()
            except TimeoutError:
                continue
        return StepResult(Observation(()), terminated=True)

    async def close(self) -> None:
        """Nothing is held."""


async def nothing(trajectory: Trajectory, task: Task) -> Score:
    """No reward."""
    return Score(0.0)


async def lags(seconds: float, found: list[float]) -> None:
    """How late a timer of 5 ms is, again and again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        due = loop.time() + 0.005
        await asyncio.sleep(0.005)
        found.append(loop.time() - due)


async def many_waiting(assembly: Assembly, count: int) -> dict[str, float]:
    """Memory and lag with so many episodes waiting for their tools."""
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)
    collector = replace(
        assembly.collector(assembly.expert_actor()),
        environment=lambda: Waiting(gate, waiting),
        reward=nothing,
        max_in_flight=count,
    )
    tasks = [assembly.source.task(i) for i in range(count)]
    gc.collect()
    before = resident_bytes()
    collecting = asyncio.create_task(drained(collector.groups(plans_of(tasks, seed=0), Independent(group_size=1))))
    for _ in range(count):
        await waiting.acquire()
    gc.collect()
    held = resident_bytes() - before
    found: list[float] = []
    await lags(10.0, found)
    gate.set()
    assert await collecting == count
    found.sort()
    return {
        "kilobytes_each": held / count / 1024,
        "lag_p50_ms": 1000 * found[len(found) // 2],
        "lag_p99_ms": 1000 * found[int(0.99 * len(found))],
        "lag_max_ms": 1000 * found[-1],
    }


async def drained(groups: Any) -> int:
    """How many there were."""
    count = 0
    async for _ in groups:
        count += 1
    return count


async def short_episodes(assembly: Assembly, count: int, looks: int) -> list[float]:
    """Megabytes of resident memory along so many short episodes through the engine."""
    engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length, rows=256)
    actor = assembly.policy_actor(engine, temperature=1.0)
    actor = replace(actor, sampling=replace(actor.sampling, max_new_tokens=2))
    collector = replace(assembly.collector(actor), reward=nothing, max_in_flight=256)

    def tasks() -> Iterator[Task]:
        for i in range(count):
            yield assembly.source.task(i % 5000)

    found, done = [], 0
    async for _ in collector.groups(plans_of(tasks(), seed=0), Independent(group_size=1)):
        done += 1
        if done % (count // looks) == 0:
            gc.collect()
            found.append(resident_bytes() / 2**20)
            print(f"{done} episodes: {found[-1]:.1f} MB", file=sys.stderr)
    await engine.close()
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=50_000)
    arguments = parser.parse_args()
    began = time.perf_counter()
    assembly = assemble(load_recipe("demo"))
    waiting = asyncio.run(many_waiting(assembly, arguments.waiting))
    memory = asyncio.run(short_episodes(assembly, arguments.episodes, 10))
    told = {
        "name": "concurrency",
        "measured": {"waiting": {"episodes": arguments.waiting, **waiting}, "resident_megabytes": memory},
        # the first tenth fills the caches
        "ratios": {"memory_last_to_second": memory[-1] / memory[1], "lag": 50 / waiting["lag_p99_ms"]},
        "goal": "lag p99 under 50 ms with 10,000 waiting; memory flat over 50,000 episodes",
        "bound": "a coroutine with its environment and its conversation",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    print(f"{arguments.waiting:,} episodes waiting: {waiting['kilobytes_each']:.1f} KB each")
    print(
        "event loop late by {lag_p50_ms:.1f} ms (p50), {lag_p99_ms:.1f} (p99), {lag_max_ms:.1f} (max)".format(**waiting)
    )
    growth = statistics.linear_regression(range(1, len(memory)), memory[1:]).slope if len(memory) > 2 else 0.0
    print(f"{arguments.episodes:,} short episodes: {memory[1]:.1f} MB after a fifth, {memory[-1]:.1f} MB at the end")
    print(f"  {growth:+.2f} MB with each tenth")


if __name__ == "__main__":
    main()
