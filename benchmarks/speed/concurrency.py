"""Memory of episodes that wait for their tools, and memory over many short episodes.

Thousands of episodes wait concurrently in one process; measured are resident memory per episode and the lag of the
event loop. Then tens of thousands of short episodes run through the engine, and resident memory is tracked.
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
from whetstone.assembly import RunComponents, assemble
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.inference import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.rollout import Independent, make_plans
from whetstone.trajectory import Score, Task, Trajectory


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@dataclass
class Waiting:
    """Environment whose first step waits until it is released."""

    gate: asyncio.Event
    waiting: asyncio.Semaphore
    """Released by each waiting environment."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment.reset`."""
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """See `Environment.step`."""
        self.waiting.release()
        # like a tool: a periodic timer, not only an event
        while not self.gate.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await self.gate.wait()
            except TimeoutError:
                continue
        return StepResult(Observation(()), terminated=True)

    async def close(self) -> None:
        """Release nothing."""


async def no_reward(trajectory: Trajectory, task: Task) -> Score:
    """Return no reward."""
    return Score(0.0)


async def record_lags(seconds: float, delays: list[float]) -> None:
    """Append the delays of a timer of 5 ms to a list."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        due = loop.time() + 0.005
        await asyncio.sleep(0.005)
        delays.append(loop.time() - due)


async def measure_waiting(assembly: RunComponents, count: int) -> dict[str, float]:
    """Return memory and event loop lag while `count` episodes wait for their tools."""
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)
    collector = replace(
        assembly.build_collector(assembly.expert_actor()),
        environment=lambda: Waiting(gate, waiting),
        reward=no_reward,
        max_in_flight=count,
    )
    tasks = [assembly.source.task(i) for i in range(count)]
    gc.collect()
    before = resident_bytes()
    collecting = asyncio.create_task(
        drain_groups(collector.groups(make_plans(tasks, seed=0), Independent(group_size=1)))
    )
    for _ in range(count):
        await waiting.acquire()
    gc.collect()
    memory = resident_bytes() - before
    delays: list[float] = []
    await record_lags(10.0, delays)
    gate.set()
    assert await collecting == count
    delays.sort()
    return {
        "kilobytes_each": memory / count / 1024,
        "lag_p50_ms": 1000 * delays[len(delays) // 2],
        "lag_p99_ms": 1000 * delays[int(0.99 * len(delays))],
        "lag_max_ms": 1000 * delays[-1],
    }


async def drain_groups(groups: Any) -> int:
    """Consume all groups and return their number."""
    count = 0
    async for _ in groups:
        count += 1
    return count


async def measure_memory(assembly: RunComponents, count: int, looks: int) -> list[float]:
    """Run `count` short episodes through the engine and return resident megabytes over time."""
    engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length, rows=256)
    actor = assembly.policy_actor(engine, temperature=1.0)
    actor = replace(actor, sampling=replace(actor.sampling, max_new_tokens=2))
    collector = replace(assembly.build_collector(actor), reward=no_reward, max_in_flight=256)

    def tasks() -> Iterator[Task]:
        for i in range(count):
            yield assembly.source.task(i % 5000)

    memory, done = [], 0
    async for _ in collector.groups(make_plans(tasks(), seed=0), Independent(group_size=1)):
        done += 1
        if done % (count // looks) == 0:
            gc.collect()
            memory.append(resident_bytes() / 2**20)
            print(f"{done} episodes: {memory[-1]:.1f} MB", file=sys.stderr)
    await engine.close()
    return memory


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=50_000)
    arguments = parser.parse_args()
    began = time.perf_counter()
    assembly = assemble(load_recipe("demo"))
    waiting = asyncio.run(measure_waiting(assembly, arguments.waiting))
    memory = asyncio.run(measure_memory(assembly, arguments.episodes, 10))
    result = {
        "name": "concurrency",
        "measured": {"waiting": {"episodes": arguments.waiting, **waiting}, "resident_megabytes": memory},
        # the first tenth fills the caches
        "ratios": {"memory_last_to_second": memory[-1] / memory[1], "lag": 50 / waiting["lag_p99_ms"]},
        "goal": "lag p99 under 50 ms with 10,000 waiting; memory flat over 50,000 episodes",
        "bound": "a coroutine with its environment and its conversation",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{arguments.waiting:,} episodes waiting: {waiting['kilobytes_each']:.1f} KB each")
    print(
        "event loop late by {lag_p50_ms:.1f} ms (p50), {lag_p99_ms:.1f} (p99), {lag_max_ms:.1f} (max)".format(**waiting)
    )
    growth = statistics.linear_regression(range(1, len(memory)), memory[1:]).slope if len(memory) > 2 else 0.0
    print(f"{arguments.episodes:,} short episodes: {memory[1]:.1f} MB after a fifth, {memory[-1]:.1f} MB at the end")
    print(f"  {growth:+.2f} MB per tenth")


if __name__ == "__main__":
    main()
