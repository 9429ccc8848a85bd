"""How much of its speed does sampling keep beside others: busy processes, and sandboxed Python calls of its own?

64 sequences are sampled without a pause, and their tokens counted in windows of some seconds, which take turns: alone,
beside two processes that compute without end, beside thirty, and while 64 short Python calls a second run in a sandbox.
Ratios are of medians, to the windows alone. A scheduler that is fair gives the threads of sampling C / (T + N) of a
core each, beside N busy processes on C cores: `of_fair_share` tells how much of that is turned into tokens.

A window begins and ends with a decode step, and what a circumstance changes is given a second before. So the whole
takes as long as `--repeats` and `--seconds` say, however slow sampling becomes: four minutes.

    python benchmarks/contention.py --keep FILE         each window a line; one that was stopped goes on
    python benchmarks/contention.py --model FOLDER      with a pretrained model, in what suits it and the machine
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch

from circumstances import circumstances
from engine import SEQUENCES, model_of, pretrained, prompts
from turns import Turns
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.sandbox import Ending, Sandbox
from whetstone.trajectory import TokenSequence

PROMPT, BUSY, CALLS_A_SECOND = 96, (2, 30), 64
FEWEST, MOST = 32, 96
"""Tokens of an answer: sequences do not all begin anew at once."""
SPINNING = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with whoever started it."""
CODE = "sum(i * i for i in range(1000))"
_SETTLING = 1.0
_LOOK = 0.002


@contextlib.asynccontextmanager
async def sampling(engine: LocalEngine) -> AsyncIterator[None]:
    """64 sequences without a pause, each a new one where it ends."""
    numbers = itertools.count()

    async def one(place: int) -> None:
        while True:
            number = next(numbers)
            count = random.Random(number).randint(FEWEST, MOST)
            ids = prompts(PROMPT, number // SEQUENCES)[place]
            await engine.generate(GenerateRequest(TokenSequence(ids), Sampling(count, seed=number), str(number)))
            engine.forget(str(number))

    tasks = [asyncio.create_task(one(place)) for place in range(SEQUENCES)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def rate(engine: LocalEngine, seconds: float) -> float:
    """Tokens a second, from the end of one decode step to that of the first behind so many seconds."""
    began, tokens = await _next_step(engine)
    await asyncio.sleep(seconds)
    ended, then = await _next_step(engine)
    return (then - tokens) / (ended - began)


async def _next_step(engine: LocalEngine) -> tuple[float, int]:
    """(when a decode step ended, tokens so far)"""
    before = engine.statistics.steps
    while engine.statistics.steps == before:  # noqa: ASYNC110 (an engine tells nobody of its steps)
        await asyncio.sleep(_LOOK)
    return time.perf_counter(), engine.statistics.decode_tokens


@contextlib.asynccontextmanager
async def busy(count: int) -> AsyncIterator[None]:
    """So many processes that compute without end."""
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", SPINNING) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def calling(sandbox: Sandbox, told: list[float]) -> AsyncIterator[None]:
    """64 sandboxed calls a second, each begun when it is due; their milliseconds are noted."""
    sessions = [sandbox.session() for _ in range(8)]
    for session in sessions:
        await session.python(CODE)
    under_way: set[asyncio.Task[None]] = set()

    async def call(number: int) -> None:
        began = time.perf_counter()
        outcome = await sessions[number % len(sessions)].python(CODE)
        assert outcome.ending is Ending.OK, outcome
        told.append(1000 * (time.perf_counter() - began))

    async def all_calls() -> None:
        began, number = time.perf_counter(), 0
        while True:
            await asyncio.sleep(max(0.0, began + number / CALLS_A_SECOND - time.perf_counter()))
            under_way.add(asyncio.create_task(call(number)))
            number += 1

    calls = asyncio.create_task(all_calls())
    try:
        yield
    finally:
        calls.cancel()
        await asyncio.gather(*under_way)
        for session in sessions:
            session.close()


async def measure(model: Any, turns: Turns, repeats: int, seconds: float) -> None:
    """All circumstances, in turn."""
    engine = LocalEngine(model, context_length=PROMPT + MOST + 16, rows=SEQUENCES)
    sandbox = Sandbox()
    async with sampling(engine):
        await rate(engine, _SETTLING)
        for _ in range(len(turns.of("with_calls")), repeats):
            turns.add("alone", await rate(engine, seconds))
            for count in BUSY:
                async with busy(count):
                    await asyncio.sleep(_SETTLING)
                    turns.add(f"beside_{count}", await rate(engine, seconds))
            calls: list[float] = []
            async with calling(sandbox, calls):
                await asyncio.sleep(_SETTLING)
                began, before = time.perf_counter(), len(calls)
                turns.add("with_calls", await rate(engine, seconds))
                turns.add("calls_a_second", (len(calls) - before) / (time.perf_counter() - began))
            turns.add("call_milliseconds", statistics.median(calls))
    sandbox.close()
    await engine.close()


def ratios_of(turns: Turns) -> dict[str, float]:
    """What was kept, and of a fair share."""
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    names = [*(f"beside_{count}" for count in BUSY), "with_calls"]
    found = {f"kept_{name}": ratio for name in names if (ratio := turns.ratio(name, "alone")) is not None}
    for count in BUSY:
        if (kept := found.get(f"kept_beside_{count}")) is not None:
            found[f"of_fair_share_beside_{count}"] = kept * max(cores, threads + count) / cores
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a window")
    parser.add_argument("--keep", type=Path, help="where windows are kept, and taken from")
    parser.add_argument("--model", help="a folder with a pretrained model")
    arguments = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()[0]
    model = model_of(PROMPT + MOST + 16) if arguments.model is None else pretrained(arguments.model, "auto")
    turns = Turns(arguments.keep, {"bench": "contention", "model": arguments.model, "seconds": arguments.seconds})
    asyncio.run(measure(model, turns, arguments.repeats, arguments.seconds))
    measured, ratios = turns.spans(), ratios_of(turns)
    told = {
        "name": "contention",
        "measured": measured,
        "ratios": ratios,
        "goal": "kept_beside_2 0.5, of_fair_share_beside_30 1, kept_with_calls 0.8",
        "bound": "a fair scheduler's share of the cores",
        "load_before": load,
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    for name, (low, middle, high) in measured.items():
        print(f"{name:<36} {middle:10.1f}  ({low:.1f} to {high:.1f})")
    for name, ratio in ratios.items():
        print(f"{name:<36} {ratio:10.2f}")
    print(f"load before: {load:.1f}")


if __name__ == "__main__":
    main()
