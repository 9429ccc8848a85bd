"""Threads of plain functions: their number, nested calls, and results that reach the event loop together."""

import asyncio
import contextvars
import threading
import time

import pytest

from whetstone.tools import thread_runner
from whetstone.tools.thread_runner import run_in_thread, with_result

NUM_CALLS = 40


@pytest.fixture
def pool(monkeypatch):
    fresh = thread_runner._Pool()
    monkeypatch.setattr(thread_runner, "_pool", fresh)
    return fresh


def test_quick_calls_share_one_thread(pool, monkeypatch):
    monkeypatch.setattr(thread_runner, "GROWTH_SECONDS", 3600.0)

    async def run():
        return await asyncio.gather(*(run_in_thread(threading.get_ident) for _ in range(NUM_CALLS)))

    used = asyncio.run(run())
    assert len(used) == NUM_CALLS
    assert len(set(used)) == 1
    assert threading.get_ident() not in used


def test_calls_that_wait_for_each_other_all_run(pool):
    barrier = threading.Barrier(NUM_CALLS, timeout=60)

    async def run():
        return await asyncio.gather(*(run_in_thread(barrier.wait) for _ in range(NUM_CALLS)))

    assert sorted(asyncio.run(run())) == list(range(NUM_CALLS))
    assert pool._num_threads == NUM_CALLS  # one per call that blocks, not more


def test_a_call_can_wait_for_another_call(pool):
    async def run():
        loop = asyncio.get_running_loop()

        def nested(depth):
            if depth == 0:
                return 0
            return 1 + asyncio.run_coroutine_threadsafe(run_in_thread(nested, depth - 1), loop).result(60)

        return await run_in_thread(nested, 10)

    assert asyncio.run(run()) == 10


def test_functions_that_hang_do_not_stop_others(pool):
    release = threading.Event()

    async def run():
        hanging = [asyncio.ensure_future(run_in_thread(release.wait, 60)) for _ in range(NUM_CALLS)]
        quick = [await run_in_thread(lambda: "done") for _ in range(3)]
        release.set()
        return quick, await asyncio.gather(*hanging)

    quick, hanging = asyncio.run(run())
    assert quick == ["done"] * 3
    assert all(hanging)


def test_results_that_are_ready_together_wake_the_event_loop_once():
    async def run():
        loop = asyncio.get_running_loop()
        wakes = []
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call, **options: (wakes.append(1), original(*call, **options))
        calls = [with_result(lambda number=number: number) for number in range(NUM_CALLS)]
        for work, _ in calls:
            work()
        return await asyncio.gather(*(future for _, future in calls)), len(wakes)

    results, count = asyncio.run(run())
    assert results == list(range(NUM_CALLS))
    assert count == 1


def test_results_of_many_threads_are_complete(pool):
    async def run():
        def work(number):
            time.sleep(number % 3 / 1000)
            return number

        return await asyncio.gather(*(run_in_thread(work, number) for number in range(500)))

    assert asyncio.run(run()) == list(range(500))


def test_exceptions_and_context_variables_reach_the_caller(pool):
    variable = contextvars.ContextVar("variable", default=0)

    def fail():
        variable.set(7)
        raise KeyError("key")

    async def run():
        with pytest.raises(KeyError):
            await run_in_thread(fail)
        return variable.get()

    assert asyncio.run(run()) == 7


def test_a_call_that_outlives_its_event_loop_leaves_its_thread_usable(pool):
    release, finished = threading.Event(), threading.Event()

    def late():
        release.wait(60)
        finished.set()

    async def abandon():
        asyncio.ensure_future(run_in_thread(late)).add_done_callback(lambda _: None)
        await asyncio.sleep(0)

    asyncio.run(abandon())
    release.set()
    assert finished.wait(60)

    async def run():
        return await run_in_thread(lambda: "done")

    assert asyncio.run(run()) == "done"
