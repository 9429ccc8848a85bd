"""Speed of sampling and of the demo's training steps next to busy processes.

64 sequences are sampled without a pause. Their tokens are counted in windows of some seconds in four settings: on the
idle machine, next to two processes that compute without end, next to thirty, and with 64 short sandboxed Python calls
per second. Ratios are of medians, relative to the idle machine. A fair scheduler gives the threads of sampling
C / (T + N) of a core each, next to N busy processes on C cores: `of_fair_share` is the part of it that becomes tokens.

A window starts and ends with a decode step, one second after the setting changed. The run takes the time that
`--repeats` and `--seconds` specify, at any sampling speed: four minutes by default.

    python -m benchmarks contention --demo              training steps of the demo, idle and next to two
    python -m benchmarks contention --keep FILE         store each window as a line, and continue from the stored ones
    python -m benchmarks contention --model FOLDER      a pretrained model, in the precision that suits the machine
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import torch

from circumstances import circumstances
from engine import SEQUENCES, build_model, pretrained, prompts
from turns import Turns
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.sandbox import Ending, Sandbox
from whetstone.trajectory import TokenSequence

PROMPT, BUSY, CALLS_A_SECOND = 96, (2, 30), 64
FEWEST, MOST = 32, 96
"""Minimum and maximum tokens per answer; different lengths keep sequences from restarting together."""
SPINNING = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Code of a busy process that ends with its parent."""
CODE = "sum(i * i for i in range(1000))"
_SETTLING = 1.0
_LOOK = 0.002


@contextlib.asynccontextmanager
async def run_sampling(engine: LocalEngine) -> AsyncIterator[None]:
    """Sample 64 sequences concurrently; each finished sequence is replaced by a new one."""
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


async def measure_rate(engine: LocalEngine, seconds: float) -> float:
    """Return tokens per second between the ends of two decode steps that are at least `seconds` apart."""
    began, tokens = await _next_step(engine)
    await asyncio.sleep(seconds)
    ended, then = await _next_step(engine)
    return (then - tokens) / (ended - began)


async def _next_step(engine: LocalEngine) -> tuple[float, int]:
    """Wait for the end of a decode step and return (time, number of tokens so far)."""
    before = engine.statistics.steps
    while engine.statistics.steps == before:  # noqa: ASYNC110 (the engine has no callback for steps)
        await asyncio.sleep(_LOOK)
    return time.perf_counter(), engine.statistics.decode_tokens


@contextlib.asynccontextmanager
async def run_busy_processes(count: int) -> AsyncIterator[None]:
    """Run `count` busy processes within the block."""
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", SPINNING) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def run_calls(sandbox: Sandbox, milliseconds: list[float]) -> AsyncIterator[None]:
    """Run 64 sandboxed calls per second on schedule, and append their milliseconds to a list."""
    sessions = [sandbox.session() for _ in range(8)]
    for session in sessions:
        await session.python(CODE)
    in_flight: set[asyncio.Task[None]] = set()

    async def call(number: int) -> None:
        began = time.perf_counter()
        outcome = await sessions[number % len(sessions)].python(CODE)
        assert outcome.ending is Ending.OK, outcome
        milliseconds.append(1000 * (time.perf_counter() - began))

    async def all_calls() -> None:
        began, number = time.perf_counter(), 0
        while True:
            await asyncio.sleep(max(0.0, began + number / CALLS_A_SECOND - time.perf_counter()))
            in_flight.add(asyncio.create_task(call(number)))
            number += 1

    calls = asyncio.create_task(all_calls())
    try:
        yield
    finally:
        calls.cancel()
        await asyncio.gather(*in_flight)
        for session in sessions:
            session.close()


async def measure(model: Any, turns: Turns, repeats: int, seconds: float) -> None:
    """Measure all settings alternately."""
    engine = LocalEngine(model, context_length=PROMPT + MOST + 16, rows=SEQUENCES)
    sandbox = Sandbox()
    async with run_sampling(engine):
        await measure_rate(engine, _SETTLING)
        for _ in range(len(turns.of("with_calls")), repeats):
            turns.add("alone", await measure_rate(engine, seconds))
            for count in BUSY:
                async with run_busy_processes(count):
                    await asyncio.sleep(_SETTLING)
                    turns.add(f"beside_{count}", await measure_rate(engine, seconds))
            calls: list[float] = []
            async with run_calls(sandbox, calls):
                await asyncio.sleep(_SETTLING)
                began, before = time.perf_counter(), len(calls)
                turns.add("with_calls", await measure_rate(engine, seconds))
                turns.add("calls_a_second", (len(calls) - before) / (time.perf_counter() - began))
            turns.add("call_milliseconds", statistics.median(calls))
    sandbox.close()
    await engine.close()


_STEPS = {"supervised": (240, 16), "reinforcement": (30, 3)}
"""By stage of the demo: its steps, and the steps measured before the busy processes are stopped or continued."""
_CHANGE_STEPS = {"supervised": 3, "reinforcement": 1}
"""Steps after such a change that are not measured."""


def measure_demo(turns: Turns) -> dict[str, float]:
    """Train the demo once, with two busy processes that run and pause in turn, and return what its steps keep.

    Measured are the seconds between the records of two successive steps of a stage. `kept_demo` is the ratio of the
    seconds that all steps of both stages take.
    """
    spinning = [subprocess.Popen([sys.executable, "-c", SPINNING]) for _ in range(BUSY[0])]
    try:
        with tempfile.TemporaryDirectory() as folder:
            is_busy, since, last = False, 0, ("", 0.0)
            _set_running(spinning, running=False)
            for stage, now in _recorded_steps(Path(folder) / "run"):
                if stage == last[0] and since > _CHANGE_STEPS[stage]:
                    turns.add(f"{stage}_{'beside_2' if is_busy else 'alone'}", now - last[1])
                since = since + 1 if stage == last[0] else 1
                last = (stage, now)
                if since >= _STEPS[stage][1] + _CHANGE_STEPS[stage]:
                    is_busy, since = not is_busy, 0
                    _set_running(spinning, running=is_busy)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    seconds = {
        side: sum(count * turns.median(f"{stage}_{side}") for stage, (count, _) in _STEPS.items())
        for side in ("alone", "beside_2")
    }
    ratios = {f"kept_{stage}": turns.median(f"{stage}_alone") / turns.median(f"{stage}_beside_2") for stage in _STEPS}
    return {**ratios, "kept_demo": seconds["alone"] / seconds["beside_2"]}


def _recorded_steps(run: Path) -> Iterator[tuple[str, float]]:
    """Train the demo without its ablation; yield the stage of each step and the time at which it is recorded."""
    words = ["train", "demo", "ablations=null", "evaluation.episodes=32", "--run-dir", str(run)]
    command = [sys.executable, "-m", "whetstone.cli.main", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    metrics, position = run / "metrics.jsonl", 0
    try:
        while process.poll() is None:
            time.sleep(_LOOK)
            if not metrics.is_file():
                continue
            with metrics.open() as lines:
                lines.seek(position)
                line = lines.readline()
                if not line.endswith("\n"):
                    continue
                position = lines.tell()
            if (stage := json.loads(line).get("stage")) in _STEPS:
                yield stage, time.perf_counter()
    finally:
        process.kill()
        process.wait()


def _set_running(processes: list[subprocess.Popen[bytes]], *, running: bool) -> None:
    """Continue or stop processes."""
    for process in processes:
        process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)


def compute_ratios(turns: Turns) -> dict[str, float]:
    """Return the remaining fraction of the idle speed, and of a fair share of the cores."""
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    names = [*(f"beside_{count}" for count in BUSY), "with_calls"]
    ratios = {f"kept_{name}": ratio for name in names if (ratio := turns.ratio(name, "alone")) is not None}
    for count in BUSY:
        if (remaining := ratios.get(f"kept_beside_{count}")) is not None:
            ratios[f"of_fair_share_beside_{count}"] = remaining * max(cores, threads + count) / cores
    return ratios


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--demo", action="store_true", help="training steps of the demo instead of sampling")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a window")
    parser.add_argument("--keep", type=Path, help="file of windows; stored ones are reused")
    parser.add_argument("--model", help="folder of a pretrained model")
    arguments = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()[0]
    if arguments.demo:
        turns = Turns(arguments.keep, {"bench": "contention of the demo"})
        ratios, goal = measure_demo(turns), "kept_demo 0.45"
    else:
        model = build_model(PROMPT + MOST + 16) if arguments.model is None else pretrained(arguments.model, "auto")
        turns = Turns(arguments.keep, {"bench": "contention", "model": arguments.model, "seconds": arguments.seconds})
        asyncio.run(measure(model, turns, arguments.repeats, arguments.seconds))
        ratios, goal = compute_ratios(turns), "kept_beside_2 0.5, of_fair_share_beside_30 1, kept_with_calls 0.8"
    measured = turns.spans()
    result = {
        "name": "contention",
        "measured": measured,
        "ratios": ratios,
        "goal": goal,
        "bound": "a fair scheduler's share of the cores",
        "load_before": load,
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, (low, middle, high) in measured.items():
        print(f"{name:<36} {middle:10.4g}  ({low:.4g} to {high:.4g})")
    for name, ratio in ratios.items():
        print(f"{name:<36} {ratio:10.2f}")
    print(f"load before: {load:.1f}")


if __name__ == "__main__":
    main()
