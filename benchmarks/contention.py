"""How much of its speed does sampling keep beside others: busy processes, and sandboxed Python calls of its own?

Rounds of the same sampling take turns: alone, beside two processes that compute without end, beside thirty, and while
64 short Python calls a second run in a sandbox. Ratios are of medians, to the rounds alone. A scheduler that is fair
gives the threads of sampling C / (T + N) of a core each, beside N busy processes on C cores: `of_fair_share` tells how
much of that is turned into tokens.

    python benchmarks/contention.py --model FOLDER      with a pretrained model, in what suits it and the machine
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import torch

from circumstances import circumstances
from engine import SEQUENCES, model_of, pretrained, prompts
from whetstone.inference import LocalEngine, Sampling
from whetstone.sandbox import Ending, Sandbox

PROMPT, BUSY, CALLS_A_SECOND = 96, (2, 30), 64
SPINNING = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with whoever started it."""
CODE = "sum(i * i for i in range(1000))"


async def sampled(engine: LocalEngine, name: str, tokens: int) -> float:
    """Tokens a second of 64 sequences, from the prompts on."""

    async def one(number: int, ids: list[int]) -> None:
        episode = f"{name}/{number}"
        await engine.generate(ids, Sampling(tokens, seed=number), episode=episode)
        engine.forget(episode)

    began = time.perf_counter()
    await asyncio.gather(*(one(i, ids) for i, ids in enumerate(prompts(PROMPT, zlib.crc32(name.encode())))))
    return SEQUENCES * tokens / (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def busy(count: int) -> AsyncIterator[None]:
    """So many processes that compute without end."""
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", SPINNING) for _ in range(count)]
    try:
        await asyncio.sleep(0.5)
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


async def measure(model: Any, repeats: int, tokens: int) -> dict[str, Any]:
    """All circumstances, in turn."""
    engine = LocalEngine(model, context_length=PROMPT + tokens + 16, rows=SEQUENCES)
    sandbox = Sandbox()
    rates: dict[str, list[float]] = {"alone": [], **{f"beside_{n}": [] for n in BUSY}, "with_calls": []}
    calls: list[float] = []
    began = {"calls": 0.0}
    await sampled(engine, "warm", tokens)
    for turn in range(repeats):
        rates["alone"].append(await sampled(engine, f"alone {turn}", tokens))
        for count in BUSY:
            async with busy(count):
                rates[f"beside_{count}"].append(await sampled(engine, f"{count} {turn}", tokens))
        async with calling(sandbox, calls):
            start = time.perf_counter()
            rates["with_calls"].append(await sampled(engine, f"calls {turn}", tokens))
            began["calls"] += time.perf_counter() - start
    sandbox.close()
    await engine.close()
    alone = statistics.median(rates["alone"])
    kept = {name: statistics.median(values) / alone for name, values in rates.items() if name != "alone"}
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    ratios = {f"kept_{name}": share for name, share in kept.items()}
    for count in BUSY:
        ratios[f"of_fair_share_beside_{count}"] = kept[f"beside_{count}"] * max(cores, threads + count) / cores
    measured: dict[str, Any] = {
        f"{name}_tokens_a_second": [min(values), statistics.median(values), max(values)]
        for name, values in rates.items()
    }
    measured["call_milliseconds"] = statistics.median(calls)
    measured["calls_a_second"] = len(calls) / began["calls"]
    return {"measured": measured, "ratios": ratios}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each sequence in a round")
    parser.add_argument("--model", help="a folder with a pretrained model")
    arguments = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()[0]
    model = model_of(PROMPT + arguments.tokens + 16) if arguments.model is None else pretrained(arguments.model, "auto")
    found = asyncio.run(measure(model, arguments.repeats, arguments.tokens))
    told = {
        "name": "contention",
        **found,
        "goal": "kept_beside_2 0.5, of_fair_share_beside_30 1, kept_with_calls 0.8",
        "bound": "a fair scheduler's share of the cores",
        "load_before": load,
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    for name, values in found["measured"].items():
        print(f"{name:<36} {values[1] if isinstance(values, list) else values:10.1f}")
    for name, ratio in found["ratios"].items():
        print(f"{name:<36} {ratio:10.2f}")
    print(f"load before: {load:.1f}")


if __name__ == "__main__":
    main()
