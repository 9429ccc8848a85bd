"""What do real tools cost? Warm interpreters against fresh ones, many sessions at once, and a hundred thousand calls
of which some hang, crash or want all memory.

The fresh interpreter is the cheapest there is: `python -I -c`, without a sandbox. Warm calls and fresh ones take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from circumstances import circumstances
from whetstone.sandbox import Ending, Limits, Outcome, Sandbox

CODE = "sum(i * i for i in range(1000))"
EXPECTED = {
    "fine": (CODE, Ending.OK),
    "waits": ("import time\ntime.sleep(1000)", Ending.TIMEOUT),
    "spins": ("while True: pass", Ending.TIMEOUT),
    "crashes": ("import os\nos.kill(os.getpid(), 11)", Ending.CRASHED),
    "wants memory": ("x = [bytearray(1 << 24) for _ in range(1000)]", Ending.MEMORY),
}


def spread(values: list[float]) -> dict[str, float]:
    """Median and what lies around it."""
    ordered = sorted(values)
    at = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in SHARES.items()}
    return {name: float(f"{value:.4g}") for name, value in at.items()}


SHARES = {"p5": 0.05, "median": 0.5, "p95": 0.95, "p99": 0.99}


async def warm_and_fresh(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    """Milliseconds of a call in a warm session, of one with an interpreter of its own, and of a fresh process."""
    warm: list[float] = []
    reset: list[float] = []
    fresh: list[float] = []
    kept, anew = sandbox.session(), sandbox.session(persistent=False)
    await kept.python(CODE)
    await anew.python(CODE)
    for _ in range(rounds):
        warm += [await timed(kept.python) for _ in range(50)]
        reset += [await timed(anew.python) for _ in range(5)]
        fresh += [await asyncio.to_thread(fresh_milliseconds) for _ in range(5)]
    kept.close()
    anew.close()
    return {"warm_ms": spread(warm), "fresh_session_ms": spread(reset), "fresh_process_ms": spread(fresh)}


async def timed(call: Callable[[str], Any]) -> float:
    """Milliseconds one call takes."""
    began = time.perf_counter()
    outcome: Outcome = await call(CODE)
    assert outcome.ending is Ending.OK, outcome
    return (time.perf_counter() - began) * 1000


def fresh_milliseconds() -> float:
    """Of a new interpreter that does the same."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", f"print({CODE})"], check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


async def starts(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    """Milliseconds until a session is there, and until it has answered once."""
    until_there, until_answer = [], []
    for _ in range(rounds):
        session = sandbox.session()
        began = time.perf_counter()
        await session.start()
        until_there.append((time.perf_counter() - began) * 1000)
        await session.python(CODE)
        until_answer.append((time.perf_counter() - began) * 1000)
        session.close()
    return {"session_start_ms": spread(until_there), "start_and_first_call_ms": spread(until_answer)}


async def crowd(sandbox: Sandbox, sessions: int, seconds: float) -> dict[str, Any]:
    """Calls of sessions that call without a pause, side by side: how many each gets done, how long each waits."""
    open_sessions = [sandbox.session(seed=i) for i in range(sessions)]
    await asyncio.gather(*(session.python(CODE) for session in open_sessions))
    until = time.perf_counter() + seconds
    done: list[list[float]] = [[] for _ in open_sessions]

    async def calling(number: int) -> None:
        while time.perf_counter() < until:
            done[number].append(await timed(open_sessions[number].python))

    await asyncio.gather(*map(calling, range(sessions)))
    for session in open_sessions:
        session.close()
    counts = [len(calls) for calls in done]
    return {
        "crowd_calls_per_second": round(sum(counts) / seconds),
        "crowd_ms": spread([ms for calls in done for ms in calls]),
        "crowd_calls_of_a_session": {"fewest": min(counts), "median": statistics.median(counts), "most": max(counts)},
    }


async def soak(sandbox: Sandbox, calls: int, hangs: float) -> dict[str, Any]:
    """A mix of good and bad calls in 64 sessions that are closed and opened again; what it leaves behind."""
    draw = random.Random(0)
    kinds = draw.choices(list(EXPECTED), [89, 4.5, 0.5, 5, 1], k=calls)
    limits = Limits(wall_seconds=hangs, cpu_seconds=10, memory_mb=128)
    work = iter(enumerate(kinds))
    wrong: Counter[str] = Counter()
    measured: list[dict[str, float]] = []
    before = left_over(sandbox)
    began = time.perf_counter()

    async def worker() -> None:
        session = sandbox.session(limits=limits)
        for number, kind in work:
            code, expected = EXPECTED[kind]
            outcome = await session.python(code)
            if outcome.ending is not expected:
                wrong[f"{kind}: {outcome.ending}"] += 1
            if number % 50 == 49:
                session.close()
                session = sandbox.session(limits=limits)
            if number % max(calls // 5, 1) == max(calls // 5, 1) - 1:
                measured.append(left_over(sandbox))
        session.close()

    await asyncio.gather(*(worker() for _ in range(64)))
    seconds = time.perf_counter() - began
    await asyncio.sleep(0.5)
    return {
        "soak_calls": calls,
        "soak_kinds": dict(Counter(kinds)),
        "soak_wrong_endings": dict(wrong),
        "soak_seconds": round(seconds, 1),
        "soak_calls_per_second": round(calls / seconds),
        "soak_before": before,
        "soak_meanwhile": measured,
        "soak_after": left_over(sandbox),
        "server_restarts": sandbox.restarts,
    }


def left_over(sandbox: Sandbox) -> dict[str, float]:
    """What there is of processes, descriptors and memory, here and behind the server."""
    here = psutil.Process()
    family = here.children(recursive=True)
    memory = 0
    for process in family:
        try:
            memory += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return {
        "processes": len(family),
        "descriptors": here.num_fds(),
        "host_mb": round(here.memory_info().rss / 2**20, 1),
        "behind_mb": round(memory / 2**20, 1),
        "sessions": sum(session.open for session in sandbox.sessions),
        "groups": len(list(Path("/sys/fs/cgroup").glob(f"**/whetstone-{os.getpid()}-*"))),
    }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, one after the other."""
    sandbox = Sandbox(isolation=arguments.isolation)
    found: dict[str, Any] = {"isolation": sandbox.isolation.value}
    found |= await warm_and_fresh(sandbox, arguments.rounds)
    found |= await starts(sandbox, arguments.rounds)
    found |= await crowd(sandbox, 64, arguments.seconds)
    if arguments.calls:
        found |= await soak(sandbox, arguments.calls, arguments.hangs)
    sandbox.close()
    found["left_when_closed"] = left_over(sandbox)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--rounds", type=int, default=40, help="of fifty warm calls and five fresh interpreters")
    parser.add_argument("--seconds", type=float, default=5.0, help="64 sessions call side by side")
    parser.add_argument("--calls", type=int, default=100_000, help="of the mix that hangs and crashes")
    parser.add_argument("--hangs", type=float, default=1.0, help="seconds a call of the mix may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    began = time.perf_counter()
    measured = asyncio.run(measure(arguments))
    ratios = {"vs_fresh_interpreter": measured["fresh_process_ms"]["median"] / measured["warm_ms"]["median"]}
    told = {
        "name": "tools",
        "measured": measured,
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "goal": {"warm_ms": 5, "vs_fresh_interpreter": 20, "session_start_ms": 20},
        **circumstances(began),
    }
    print(json.dumps(told) if arguments.json else json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
