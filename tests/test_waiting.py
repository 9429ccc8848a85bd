"""Waits with a deadline: abandoned coroutines do not keep the event loop."""

import asyncio
import threading

import pytest

from whetstone.waiting import DeadlinePassed, finish_within


async def ignore_cancellation():
    while True:
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            continue


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_event_loop_ends_although_a_coroutine_ignores_its_cancellation():
    reasons = []

    async def wait_in_vain():
        try:
            await finish_within(0.01, ignore_cancellation(), owner="tool go", patience=0.01)
        except DeadlinePassed as error:
            reasons.append(str(error))

    thread = threading.Thread(target=asyncio.run, args=(wait_in_vain(),), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert reasons == ["tool go did not finish within 0.01 s"]
    assert not thread.is_alive()
