"""Cost of waiting for the slowest tool: three ways to collect the same episodes.

256 episodes of four turns, 64 in flight, tools with log-normal latency (median 0.5 s, σ 1), a real engine. Turn by
turn: the next turn starts after all episodes have sampled and all tools have responded. Batch by batch: new episodes
start after all 64 have ended. The collector does not wait. The latencies are the same for all three ways. Also with
tools ten times as fast and five times as slow.

The bound is a schedule without overhead: 64 slots that each take the next episode immediately; an episode takes
its tool latencies and its own time in the engine; or the engine's busy time if that is longer.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from circumstances import circumstances
from whetstone.assembly import RunComponents, assemble
from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.inference import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.rollout import Action, Actor, ActorInput, Collector, Independent, make_plans
from whetstone.trajectory import EndReason, Score, Task, Trajectory

EPISODES, TURNS, IN_FLIGHT = 256, 4, 64
MEDIAN_SECONDS, SIGMA = 0.5, 1.0


def latencies(scale: float, draw: int) -> dict[str, list[float]]:
    """Sample the seconds of the tools of each episode, per turn."""
    numbers = random.Random(draw)
    mu = math.log(MEDIAN_SECONDS * scale)
    return {str(i): [numbers.lognormvariate(mu, SIGMA) for _ in range(TURNS)] for i in range(EPISODES)}


@dataclass
class SimulatedTools:
    """Environment with sampled latencies; episodes have four steps."""

    seconds: dict[str, list[float]]
    barrier: asyncio.Barrier | None = None
    turn: int = 0
    task: str = ""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment.reset`."""
        self.task = task.id
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """See `Environment.step`."""
        await asyncio.sleep(self.seconds[self.task][self.turn])
        self.turn += 1
        if self.barrier is not None:
            await self.barrier.wait()
        return StepResult(Observation((user("go on"),)), terminated=self.turn == TURNS)

    async def close(self) -> None:
        """Release nothing."""


@dataclass
class Speaker:
    """Actor whose turns count as complete; with a barrier, it waits until all episodes have sampled."""

    actor: Actor
    barrier: asyncio.Barrier | None = None

    async def act(self, moment: ActorInput) -> Action:
        """See `Actor.act`."""
        action = await self.actor.act(moment)
        if self.barrier is not None:
            await self.barrier.wait()
        return replace(action, complete=True)

    def leave(self, episode: str) -> None:
        """See `Actor.leave`."""
        self.actor.leave(episode)


async def no_reward(trajectory: Trajectory, task: Task) -> Score:
    """Return no reward."""
    return Score(0.0)


async def collect_episodes(
    assembly: RunComponents, engine: LocalEngine, seconds: dict[str, list[float]], way: str
) -> tuple[float, list[Trajectory]]:
    """Collect all episodes and return (seconds, trajectories)."""
    barrier = asyncio.Barrier(IN_FLIGHT) if way == "turns" else None

    def environment() -> Environment:
        return SimulatedTools(seconds, barrier)

    speaker = Speaker(assembly.policy_actor(engine, temperature=1.0), barrier)
    plain = assembly.build_collector(speaker)
    collector: Collector = replace(plain, environment=environment, reward=no_reward, max_in_flight=IN_FLIGHT)
    tasks = [Task(str(i), "count") for i in range(EPISODES)]
    size = EPISODES if way == "collector" else IN_FLIGHT
    began = time.perf_counter()
    done: list[Trajectory] = []
    for first in range(0, EPISODES, size):
        async for group in collector.groups(make_plans(tasks[first : first + size], seed=0), Independent(group_size=1)):
            done += group.trajectories
    spent = time.perf_counter() - began
    assert all(len(t.turns) == TURNS and t.ended == EndReason.TERMINATED for t in done)
    return spent, done


def compute_bound(done: Sequence[Trajectory], seconds: dict[str, list[float]], busy: float) -> float:
    """Return the lower bound in seconds of any schedule of these episodes over 64 slots."""
    in_engine = {t.task_id: sum(turn.generation_seconds for turn in t.turns) for t in done}
    free = [0.0] * IN_FLIGHT
    for i in range(EPISODES):
        began = heapq.heappop(free)
        heapq.heappush(free, began + sum(seconds[str(i)]) + in_engine[str(i)])
    return max(max(free), busy)


async def compare(scale: float, repeats: int) -> dict[str, Any]:
    """Return medians over `repeats` samples of the latencies."""
    # any model will do: its text is not used
    assembly = assemble(load_recipe("demo", ["policy.tiny.context_length=512"]))
    engine = LocalEngine(assembly.policy.model, context_length=512, rows=IN_FLIGHT)
    spent: dict[str, list[float]] = {"collector": [], "turns": [], "batches": []}
    shares: list[float] = []
    for draw in range(repeats):
        seconds = latencies(scale, draw)
        for way, values in spent.items():
            before = engine.statistics.busy_seconds
            took, done = await collect_episodes(assembly, engine, seconds, way)
            values.append(took)
            if way == "collector":
                shares.append(compute_bound(done, seconds, engine.statistics.busy_seconds - before) / took)
        print(f"latency x{scale:g}: " + "  ".join(f"{w} {v[-1]:.1f} s" for w, v in spent.items()), file=sys.stderr)
    await engine.close()
    middle = {way: statistics.median(values) for way, values in spent.items()}
    return {
        "seconds": {way: [min(values), middle[way], max(values)] for way, values in spent.items()},
        "vs_synchronous": middle["turns"] / middle["collector"],
        "vs_batch_synchronous": middle["batches"] / middle["collector"],
        "of_bound": statistics.median(shares),
        "repeats": repeats,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="samples of the latencies; one for slow tools")
    parser.add_argument(
        "--scales", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="factors on the median of 0.5 s"
    )
    arguments = parser.parse_args()
    began = time.perf_counter()
    measured = {}
    for scale in arguments.scales:
        measured[f"x{scale:g}"] = asyncio.run(compare(scale, 1 if scale > 1 else arguments.repeats))
    usual = measured.get("x1") or next(iter(measured.values()))
    result = {
        "name": "rollout",
        "measured": measured,
        "ratios": {name: usual[name] for name in ("vs_synchronous", "vs_batch_synchronous", "of_bound")},
        "goal": "vs_synchronous 4, vs_batch_synchronous 2, of_bound 0.9 with a median of 0.5 s",
        "bound": "64 places without overhead, or the engine's busy time",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, case in measured.items():
        print(f"latency {name} ({case['repeats']} samples)")
        for way, (low, median, high) in case["seconds"].items():
            print(f"  {way:<12} {median:7.1f} s  ({low:.1f} to {high:.1f})")
        for ratio in ("vs_synchronous", "vs_batch_synchronous", "of_bound"):
            print(f"  {ratio:<22} {case[ratio]:.2f}")


if __name__ == "__main__":
    main()
