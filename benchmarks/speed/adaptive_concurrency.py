"""Adaptive limit of concurrent episodes against five fixed limits, on a tool-bound and an engine-bound workload.

The engine and the tools are simulated, and so is the clock: results do not depend on the load of this machine. The
limit is the real one (`ConcurrencyController`, `EpisodeSlots`, `AdaptiveLimit`), and adapts after turns as in a run.

The simulated engine has the costs of a server with a paged KV cache:

- A decode step takes 12 ms plus 0.12 ms per sequence, prefill 0.05 ms per token.
- The cache has 120,000 tokens. If sequences in progress need more, the youngest ones are preempted and recomputed.
- Prefixes of episodes that wait for tools stay in the cache until their room is needed, the oldest first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from circumstances import circumstances
from whetstone.inference.protocol import EngineLoad
from whetstone.rollout.concurrency import AdaptiveLimit, ConcurrencyController, EpisodeCancelled, EpisodeSlots

FIXED = (32, 64, 128, 256, 512)
STEP_SECONDS, SEQUENCE_SECONDS, PREFILL_SECONDS = 0.012, 0.00012, 0.00005
CAPACITY = 120_000
"""Tokens in the KV cache."""
PROMPT, ANSWER, RESULT, TURNS = 500, 150, 100, 6
"""Tokens of the prompt, of an answer and of a tool result (means), and turns per episode."""
STRIDE = 10
"""Tokens per simulated decode step of a sequence."""
GOAL = 0.95


class SimulatedSelector(selectors.SelectSelector):
    """Selector whose waits take no time: they advance the clock of the loop instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Advance the clock by the timeout."""
        if timeout is None:
            raise RuntimeError("all tasks wait for each other")
        self.now += max(0.0, timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop with a simulated clock."""

    def __init__(self) -> None:
        self.simulated = SimulatedSelector()
        super().__init__(self.simulated)

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self.simulated.now


@dataclass(eq=False)
class SimulatedRequest:
    """Request in the simulated engine."""

    episode: int
    tokens: int
    """Tokens of the context so far."""
    left: int
    """Tokens that are still to be sampled."""
    done: asyncio.Future[None]
    prefill: int = 0
    """Tokens that must be computed before the next one is sampled."""


@dataclass
class SimulatedEngine:
    """Server with continuous batching, a paged KV cache, preemption and a prefix cache."""

    prefill_seconds: float = PREFILL_SECONDS
    running: list[SimulatedRequest] = field(default_factory=list)
    waiting: list[SimulatedRequest] = field(default_factory=list)
    idle: dict[int, int] = field(default_factory=dict)
    """Cached tokens of episodes without a request, least recently used first."""
    expected: dict[int, int] = field(default_factory=dict)
    preemptions: int = 0
    recomputed: int = 0
    _serving: asyncio.Task[None] | None = None

    async def generate(self, episode: int, tokens: int, count: int) -> None:
        """Sample `count` tokens after a context of `tokens`."""
        cached = self.idle.pop(episode, 0)
        if self.expected.get(episode, 0) > cached:
            self.preemptions += 1
            self.recomputed += self.expected[episode] - cached
        future = asyncio.get_running_loop().create_future()
        sequence = SimulatedRequest(episode, tokens, count, future, prefill=tokens - cached)
        self.waiting.append(sequence)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        try:
            await future
        except asyncio.CancelledError:
            for queue in (self.running, self.waiting):
                if sequence in queue:
                    queue.remove(sequence)
            raise
        self.idle[episode] = self.expected[episode] = sequence.tokens
        self._evict()

    def forget(self, episode: int) -> None:
        """Drop the prefix of an episode."""
        self.idle.pop(episode, None)
        self.expected.pop(episode, None)

    async def measure_load(self) -> EngineLoad:
        """Return the load as a server's metrics show it: only sequences in progress use room."""
        return EngineLoad(min(1.0, self._used / CAPACITY), len(self.waiting), self.preemptions)

    @property
    def _used(self) -> int:
        return sum(sequence.tokens for sequence in self.running)

    def _evict(self) -> None:
        room = CAPACITY - self._used
        idle_tokens = sum(self.idle.values())
        while idle_tokens > room and self.idle:
            idle_tokens -= self.idle.pop(next(iter(self.idle)))

    async def _serve(self) -> None:
        while self.running or self.waiting:
            while self.waiting and self._used + self.waiting[0].tokens + STRIDE <= CAPACITY:
                self.running.append(self.waiting.pop(0))
            while self._used + STRIDE * len(self.running) > CAPACITY and len(self.running) > 1:
                youngest = self.running.pop()
                youngest.prefill = youngest.tokens
                self.preemptions += 1
                self.recomputed += youngest.tokens
                self.waiting.insert(0, youngest)
            prefill = sum(sequence.prefill for sequence in self.running)
            seconds = STRIDE * (STEP_SECONDS + SEQUENCE_SECONDS * len(self.running)) + self.prefill_seconds * prefill
            await asyncio.sleep(seconds)
            for sequence in self.running:
                sequence.prefill = 0
                sequence.tokens += min(STRIDE, sequence.left)
                sequence.left -= STRIDE
                if sequence.left <= 0 and not sequence.done.done():
                    sequence.done.set_result(None)
            self.running = [sequence for sequence in self.running if sequence.left > 0]
            self._evict()


async def play_episodes(count: int, tool_seconds: float, limit: int | None, prefill_seconds: float) -> dict[str, float]:
    """Play episodes and return the throughput in the simulated time.

    Args:
        count: Number of episodes.
        tool_seconds: Mean duration of a tool call.
        limit: Fixed limit; None: adaptive.
        prefill_seconds: Prefill time per token.
    """
    engine, loop = SimulatedEngine(prefill_seconds), asyncio.get_running_loop()
    controller = ConcurrencyController()
    slots = EpisodeSlots(controller.limit if limit is None else limit)
    adaptive = AdaptiveLimit(controller, slots, engine.measure_load, on_change=lambda: None)
    finished: list[int] = []

    async def play(number: int) -> int:
        chance, tokens = random.Random(number), PROMPT
        try:
            for _ in range(TURNS):
                answer = chance.randint(ANSWER // 2, 3 * ANSWER // 2)
                await engine.generate(number, tokens, answer)
                if limit is None:
                    adaptive.count_turn()
                await asyncio.sleep(tool_seconds * chance.lognormvariate(-0.125, 0.5))
                tokens += answer + chance.randint(RESULT // 2, 3 * RESULT // 2)
        finally:
            engine.forget(number)
        return number

    async def own_slot(number: int) -> None:
        await slots.take_slot()
        try:
            while True:
                try:
                    finished.append(await slots.run_attempt(number, play(number)))
                    return
                except EpisodeCancelled:
                    await slots.yield_slot()
        finally:
            slots.return_slot()

    began = loop.time()
    await asyncio.gather(*(own_slot(number) for number in range(count)))
    assert sorted(finished) == list(range(count)), "an episode was lost or played twice"
    seconds = loop.time() - began
    return {
        "episodes_per_second": count / seconds,
        "recomputed_tokens_per_episode": engine.recomputed / count,
        "cancelled": slots.num_cancelled,
        "last_limit": slots.limit,
    }


def simulate(
    count: int, tool_seconds: float, limit: int | None, prefill_seconds: float = PREFILL_SECONDS
) -> dict[str, float]:
    """Run `play_episodes` with a simulated clock."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(play_episodes(count, tool_seconds, limit, prefill_seconds))


def compare_limits(count: int, tool_seconds: float, limits: Sequence[int], prefill_seconds: float) -> dict[str, Any]:
    """Return the results of each fixed limit and of the adaptive one, and its fraction of the best fixed one."""
    results: dict[str, Any] = {str(limit): simulate(count, tool_seconds, limit, prefill_seconds) for limit in limits}
    best = max(result["episodes_per_second"] for result in results.values())
    results["auto"] = simulate(count, tool_seconds, None, prefill_seconds)
    return {"limits": results, "of_best_fixed": results["auto"]["episodes_per_second"] / best}


def main() -> None:
    """Compare the limits on both workloads, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=3000, help="episodes per setting (%(default)s)")
    parser.add_argument(
        "--prefill-seconds", type=float, default=PREFILL_SECONDS, help="prefill time per token (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    began = time.perf_counter()
    workloads = {"engine-bound": 0.1, "tool-bound": 8.0}
    measured = {
        name: compare_limits(options.episodes, seconds, FIXED, options.prefill_seconds)
        for name, seconds in workloads.items()
    }
    if options.json:
        ratios = {f"{name}_of_best_fixed": result["of_best_fixed"] for name, result in measured.items()}
        print(
            json.dumps(
                {
                    "name": "adaptive_concurrency",
                    "measured": measured,
                    "ratios": ratios,
                    "goal": GOAL,
                    "bound": 1.0,
                    **circumstances(began),
                },
                indent=1,
            )
        )
        return
    for name, result in measured.items():
        print(f"{name}: auto reaches {result['of_best_fixed']:.1%} of the best fixed limit (goal {GOAL:.0%})")
        for limit, values in result["limits"].items():
            print(
                f"  {limit:>5}  {values['episodes_per_second']:6.2f} episodes/s  "
                f"{values['recomputed_tokens_per_episode']:6.0f} tokens recomputed per episode  "
                f"{values['cancelled']:.0f} cancelled, limit {values['last_limit']:.0f} at the end"
            )


if __name__ == "__main__":
    main()
