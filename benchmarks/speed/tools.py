"""Cost of real tools: warm and fresh interpreters, concurrent sessions, failing calls, search, and SQL.

Measured are warm interpreters against fresh ones, many concurrent sessions, a hundred thousand calls of which some
hang, crash or exhaust memory, a search over a million passages, and SQL against its bare driver. The fresh
interpreter is the cheapest possible: `python -I -c` without a sandbox. Warm and fresh calls alternate, as do SQL calls
and the driver's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from circumstances import circumstances
from whetstone.chat import ToolCall
from whetstone.sandbox import Ending, Limits, Outcome, Sandbox, Session
from whetstone.tools import Sql, Toolset
from whetstone.tools.corpus import Passage
from whetstone.tools.corpus_index import open_index, write_index
from whetstone.trajectory import Task

VOCABULARY = 50_000
CODE = "sum(i * i for i in range(1000))"
EXPECTED = {
    "fine": (CODE, Ending.OK),
    "waits": ("import time\ntime.sleep(1000)", Ending.TIMEOUT),
    "spins": ("while True: pass", Ending.TIMEOUT),
    "crashes": ("import os\nos.kill(os.getpid(), 11)", Ending.CRASHED),
    "wants memory": ("x = [bytearray(1 << 24) for _ in range(1000)]", Ending.MEMORY),
}


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and quantiles."""
    ordered = sorted(values)
    at = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in SHARES.items()}
    return {name: float(f"{value:.4g}") for name, value in at.items()}


SHARES = {"p5": 0.05, "median": 0.5, "p95": 0.95, "p99": 0.99}


async def warm_and_fresh(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    """Measure the milliseconds of a call in a warm session, in a new interpreter, and in a fresh process."""
    warm: list[float] = []
    reset: list[float] = []
    fresh: list[float] = []
    warm_session, fresh_session = sandbox.session(), sandbox.session(persistent=False)
    await warm_session.python(CODE)
    await fresh_session.python(CODE)
    for _ in range(rounds):
        warm += [await timed(warm_session.python) for _ in range(50)]
        reset += [await timed(fresh_session.python) for _ in range(5)]
        fresh += [await asyncio.to_thread(fresh_milliseconds) for _ in range(5)]
    warm_session.close()
    fresh_session.close()
    return {"warm_ms": spread(warm), "fresh_session_ms": spread(reset), "fresh_process_ms": spread(fresh)}


async def timed(call: Callable[[str], Any]) -> float:
    """Return the milliseconds of a call."""
    began = time.perf_counter()
    outcome: Outcome = await call(CODE)
    assert outcome.ending is Ending.OK, outcome
    return (time.perf_counter() - began) * 1000


def fresh_milliseconds() -> float:
    """Return the milliseconds of the same code in a new interpreter."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", f"print({CODE})"], check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


async def starts(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    """Measure the milliseconds to a session in a used and in a new process, and to its first result.

    A process that was just released must still be checked for changes; one that was released earlier is checked.
    """
    until_there, until_answer, until_new, until_proven = [], [], [], []
    for number in range(rounds):
        new = sandbox.session(limits=Limits(open_files=200 + number))  # no used process has such limits
        began = time.perf_counter()
        await new.start()
        until_new.append((time.perf_counter() - began) * 1000)
        new.close()
        session = sandbox.session()
        began = time.perf_counter()
        await session.start()
        until_there.append((time.perf_counter() - began) * 1000)
        await session.python(CODE)
        until_answer.append((time.perf_counter() - began) * 1000)
        session.close()
        following = sandbox.session()
        began = time.perf_counter()
        await following.start()
        until_proven.append((time.perf_counter() - began) * 1000)
        await following.python(CODE)
        following.close()
    proof = statistics.median(until_proven) - statistics.median(until_there)
    return {
        "session_start_ms": spread(until_there),
        "session_start_in_a_world_just_left_ms": spread(until_proven),
        "proof_ms": round(proof, 3),
        "new_world_ms": spread(until_new),
        "start_and_first_call_ms": spread(until_answer),
    }


async def crowd(sandbox: Sandbox, sessions: int, seconds: float) -> dict[str, Any]:
    """Measure concurrent sessions with continuous calls: calls per session, latency, and fairness."""
    open_sessions = [sandbox.session(seed=i) for i in range(sessions)]
    await asyncio.gather(*(session.python(CODE) for session in open_sessions))
    until = time.perf_counter() + seconds
    done: list[list[float]] = [[] for _ in open_sessions]

    async def calling(number: int) -> None:
        while time.perf_counter() < until:
            done[number].append(await timed(open_sessions[number].python))

    await asyncio.gather(*map(calling, range(sessions)))
    began = time.perf_counter()

    async def fifty(session: Session) -> float:
        for _ in range(50):
            await timed(session.python)
        return time.perf_counter() - began

    completions = await asyncio.gather(*map(fifty, open_sessions))
    for session in open_sessions:
        session.close()
    counts = [len(calls) for calls in done]
    return {
        "crowd_calls_per_second": round(sum(counts) / seconds),
        "crowd_ms": spread([ms for calls in done for ms in calls]),
        "crowd_calls_of_a_session": {"fewest": min(counts), "median": statistics.median(counts), "most": max(counts)},
        "crowd_fairness": round(jain([float(count) for count in counts]), 4),
        "completion_last_over_first": round(max(completions) / min(completions), 3),
        "completion_fairness": round(jain(completions), 4),
    }


def jain(shares: Sequence[float]) -> float:
    """Compute Jain's fairness index (Σx)² / (n Σx²): 1 if all are equal, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


async def soak(sandbox: Sandbox, calls: int, hangs: float) -> dict[str, Any]:
    """Run a mix of good and failing calls in 64 sessions that are reopened, and return the leaked resources."""
    draw = random.Random(0)
    kinds = draw.choices(list(EXPECTED), [89, 4.5, 0.5, 5, 1], k=calls)
    limits = Limits(wall_seconds=hangs, cpu_seconds=10, memory_mb=128)
    work = iter(enumerate(kinds))
    wrong: Counter[str] = Counter()
    measured: list[dict[str, float]] = []
    await asyncio.sleep(1)  # earlier sessions need a moment to end
    before = measure_resources(sandbox)
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
                measured.append(measure_resources(sandbox))
        session.close()

    await asyncio.gather(*(worker() for _ in range(64)))
    seconds = time.perf_counter() - began
    await asyncio.sleep(1)
    return {
        "soak_calls": calls,
        "soak_kinds": dict(Counter(kinds)),
        "soak_wrong_endings": dict(wrong),
        "soak_seconds": round(seconds, 1),
        "soak_calls_per_second": round(calls / seconds),
        "soak_before": before,
        "soak_meanwhile": measured,
        "soak_after": measure_resources(sandbox),
        "server_restarts": sandbox.server.restarts,
    }


def measure_resources(sandbox: Sandbox) -> dict[str, float]:
    """Return the processes, descriptors and memory of this process and of the sandbox server."""
    process_here = psutil.Process()
    family = process_here.children(recursive=True)
    memory = 0
    for process in family:
        try:
            memory += process.memory_full_info().pss  # shared pages count once
        except psutil.NoSuchProcess:
            continue
    return {
        "processes": len(family),
        "descriptors": process_here.num_fds(),
        "host_mb": round(process_here.memory_info().rss / 2**20, 1),
        "behind_mb": round(memory / 2**20, 1),
        "sessions": sum(session.is_open for session in sandbox.sessions),
        "groups": len(list(Path("/sys/fs/cgroup").glob(f"**/whetstone-{os.getpid()}-*"))),
    }


def generate_passages(count: int, words: int) -> Iterator[Passage]:
    """Yield passages with Zipf-distributed words: the n-th word is 1/n as frequent as the first."""
    draw = np.random.default_rng(0)
    vocabulary = np.array([f"w{number}" for number in range(VOCABULARY)])
    shares = 1 / np.arange(1, VOCABULARY + 1)
    shares /= shares.sum()
    for first in range(0, count, 10_000):
        words_sampled = vocabulary[draw.choice(VOCABULARY, size=(min(10_000, count - first), words), p=shares)]
        for number, row in enumerate(words_sampled, first):
            yield Passage(f"p{number}", f"title {number}", " ".join(row))


def measure_search(count: int, queries: int) -> dict[str, Any]:
    """Measure the milliseconds of a query, and the build time, disk size and memory of the index."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-bench-"))
    try:
        began = time.perf_counter()
        write_index(folder / "index", generate_passages(count, 60))
        built = time.perf_counter() - began
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        completed = subprocess.run(
            [sys.executable, __file__, "--queries-of", str(folder / "index"), "--rounds", str(queries)],
            check=True,
            capture_output=True,
            text=True,
        )
        figures: dict[str, Any] = json.loads(completed.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"passages": count, "index_seconds": round(built, 1), "index_mb": round(size / 2**20), **figures}


def measure_queries(folder: Path, queries: int) -> dict[str, Any]:
    """Measure in a new process the milliseconds of queries with one to five words, and the growth of memory."""
    draw = random.Random(1)
    ranks = [
        round(VOCABULARY ** draw.random()) - 1 for _ in range(queries * 5)
    ]  # approximately as frequent as in the text
    before = psutil.Process().memory_info().rss
    index = open_index(folder)
    took = []
    for number in range(queries):
        query = " ".join(f"w{rank}" for rank in ranks[5 * number :][: 1 + number % 5])
        began = time.perf_counter()
        index.by_words(query, 5)
        took.append((time.perf_counter() - began) * 1000)
    process = psutil.Process()
    return {
        "search_ms": spread(took),
        "search_first_ms": round(took[0], 2),
        "search_resident_mb": round((process.memory_info().rss - before) / 2**20, 1),
        "search_own_mb": round((process.memory_full_info().uss) / 2**20, 1),
    }


async def measure_sql(rounds: int) -> dict[str, Any]:
    """Measure the milliseconds of a query with a hundred rows, with the tool and with only the driver."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-bench-"))
    path = folder / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price INTEGER, kind TEXT)")
        rows = [(f"item {number}", number % 97, f"kind {number % 7}") for number in range(10_000)]
        connection.executemany("INSERT INTO item VALUES (?, ?, ?)", rows)
    query = "SELECT * FROM item WHERE price < 90 LIMIT 50"
    toolset = Toolset([Sql(url=str(path))])
    await toolset.open(Task("t", ""), seed=0)
    bare = sqlite3.connect(path)
    tool, driver = [], []
    for _ in range(rounds * 20):
        began = time.perf_counter()
        bare.execute(query).fetchall()
        driver.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        answer = await toolset.call(ToolCall("sql", json.dumps({"query": query})))
        tool.append((time.perf_counter() - began) * 1000)
        assert answer.record.outcome == "ok"
    bare.close()
    await toolset.close()
    shutil.rmtree(folder, ignore_errors=True)
    overhead = statistics.median(tool) - statistics.median(driver)
    return {"sql_ms": spread(tool), "sql_driver_ms": spread(driver), "sql_overhead_ms": round(overhead, 3)}


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements in sequence."""
    sandbox = Sandbox(isolation=arguments.isolation)
    results: dict[str, Any] = {"isolation": sandbox.isolation.value}
    results |= await warm_and_fresh(sandbox, arguments.rounds)
    results |= await starts(sandbox, arguments.rounds)
    results |= await crowd(sandbox, 64, arguments.seconds)
    if arguments.calls:
        results |= await soak(sandbox, arguments.calls, arguments.hangs)
    sandbox.close()
    results["left_when_closed"] = measure_resources(sandbox)
    results |= await measure_sql(arguments.rounds)
    if arguments.passages:
        results |= await asyncio.to_thread(measure_search, arguments.passages, 500)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of fifty warm calls and five fresh interpreters")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of concurrent calls in 64 sessions")
    parser.add_argument("--calls", type=int, default=100_000, help="calls of the mix that hangs and crashes")
    parser.add_argument("--hangs", type=float, default=1.0, help="time limit in seconds per call of the mix")
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages to search")
    parser.add_argument("--queries-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.queries_of is not None:
        print(json.dumps(measure_queries(arguments.queries_of, arguments.rounds)))
        return
    began = time.perf_counter()
    measured = asyncio.run(measure(arguments))
    ratios = {"vs_fresh_interpreter": measured["fresh_process_ms"]["median"] / measured["warm_ms"]["median"]}
    result = {
        "name": "tools",
        "measured": measured,
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "goal": {
            "warm_ms": 5,
            "vs_fresh_interpreter": 20,
            "session_start_ms": 20,
            "search_ms": 20,
            "sql_overhead_ms": 1,
        },
        **circumstances(began),
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
