"""Warm pool: each container serves one session, the pool is bounded, and nothing remains."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.containers import busybox_image, containers_of, needs_podman
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox import ContainerOptions, ContainerPool, Limits
from whetstone.sandbox.containers import warm_pool
from whetstone.sandbox.containers.container_runtime import ContainerPlace
from whetstone.sandbox.containers.warm_pool import WarmPool

LIMITS = Limits()


class Starts:
    """Counts containers; each is this process."""

    def __init__(self, process=None):
        self.started, self.discarded, self.process = [], [], os.getpid() if process is None else process
        self._numbers, self.error = itertools.count(), ""
        self.gate = threading.Event()
        self.gate.set()

    def start(self, limits):
        self.gate.wait()
        if self.error:
            raise InfrastructureError(self.error)
        self.started.append(str(next(self._numbers)))
        return ContainerPlace(self.started[-1], self.process, "", "", "/")

    def pool(self, size):
        return WarmPool(self.start, self.discarded.append, size=size)


def take(pool, count, limits=LIMITS):
    async def call():
        try:
            return [(await pool.take(limits)).name for _ in range(count)]
        finally:
            await asyncio.sleep(2 * warm_pool._REFILL_SECONDS)  # until others are started in their place

    return asyncio.run(call())


def test_each_container_is_taken_once_and_at_most_size_containers_wait():
    starts = Starts()
    pool = starts.pool(3)
    pool.fill_pool(LIMITS)
    pool.fill_pool(LIMITS)
    taken = take(pool, 5) + take(pool, 5)
    pool.close()
    assert len(set(taken)) == 10
    assert set(starts.started) == {*taken, *starts.discarded}
    assert len(starts.started) <= 13


def filled_pool(monkeypatch, size, refill_seconds):
    monkeypatch.setattr(warm_pool, "_REFILL_SECONDS", refill_seconds)
    starts = Starts()
    pool = starts.pool(size)
    pool.fill_pool(LIMITS)
    return starts, pool


def test_sessions_that_start_at_the_same_time_take_theirs_before_others_are_started(monkeypatch):
    starts, pool = filled_pool(monkeypatch, 64, 60.0)

    async def call():
        return await asyncio.gather(*(pool.take(LIMITS) for _ in range(64)))

    taken = asyncio.run(call())
    assert {place.name for place in taken} == set(starts.started)
    assert len(starts.started) == 64
    pool.close()


def test_a_pool_that_is_closed_is_not_filled_again(monkeypatch):
    starts, pool = filled_pool(monkeypatch, 2, 0.0)

    async def call():
        place = await pool.take(LIMITS)
        pool.close()
        await asyncio.sleep(0)
        return place.name

    name = asyncio.run(call())
    assert set(starts.started) == {name, *starts.discarded}


def test_pool_of_size_zero_starts_only_what_is_taken():
    starts = Starts()
    assert take(starts.pool(0), 3) == starts.started == ["0", "1", "2"]


def test_other_limits_never_get_a_waiting_container():
    starts = Starts()
    pool = starts.pool(2)
    pool.fill_pool(LIMITS)
    (other,) = take(pool, 1, Limits(memory_mb=7))
    pool.close()
    assert other not in starts.discarded
    assert len(starts.discarded) == 2


def test_ended_and_old_containers_are_replaced(monkeypatch):
    child = subprocess.Popen(["sleep", "100"])
    starts = Starts(child.pid)
    pool = starts.pool(2)
    pool.fill_pool(LIMITS)
    pool._waiting[-1].result()
    child.kill()
    child.wait()
    starts.process = os.getpid()
    (name,) = take(pool, 1)
    assert name not in ("0", "1")
    assert starts.discarded == ["0", "1"]
    monkeypatch.setattr(warm_pool, "_MAX_AGE_SECONDS", 0.0)
    replaced = [future.result().place.name for future in pool._waiting]
    monkeypatch.setattr(warm_pool, "_MAX_AGE_SECONDS", 1e9)
    assert take(pool, 1)[0] in replaced
    pool.close()


def test_failure_in_advance_is_not_the_failure_of_an_episode():
    starts = Starts()
    starts.error = "no space"
    pool = starts.pool(1)
    pool.fill_pool(LIMITS)
    with pytest.raises(InfrastructureError, match="no space"):
        take(pool, 1)
    assert isinstance(pool._waiting[-1].exception(), InfrastructureError)
    starts.error = ""
    (name,) = take(pool, 1)
    pool.close()
    assert set(starts.started) == {name, *starts.discarded}


def test_container_of_a_canceled_episode_is_removed():
    starts = Starts()
    pool = starts.pool(0)
    starts.gate.clear()

    async def call():
        taking = asyncio.ensure_future(pool.take(LIMITS))
        await asyncio.sleep(0.05)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(call())
    starts.gate.set()
    pool.close()
    assert starts.started == starts.discarded == ["0"]


def test_concurrent_threads_share_a_pool():
    starts = Starts()
    pool = starts.pool(4)
    pool.fill_pool(LIMITS)
    with ThreadPoolExecutor(4) as threads:
        taken = [name for names in threads.map(lambda _: take(pool, 20), range(4)) for name in names]
    pool.close()
    assert len(set(taken)) == 80
    assert set(starts.started) == {*taken, *starts.discarded}


def test_negative_size_is_refused():
    with pytest.raises(SandboxError, match=r"sandbox.warm_containers: must be 0 or more, got -1"):
        ContainerOptions(container="podman", image="a", warm_containers=-1)


# ------------------------------------------------------------ podman


@needs_podman
@pytest.mark.slow
def test_no_file_process_or_mount_of_an_earlier_session_is_visible():
    marks = "echo secret > /srv/s; echo secret > /tmp/s; mkdir /new; rm /bin/vi; sleep 81 & export A=1; cd /new"
    look = "pwd; ls -A /srv /tmp / ; ls /bin/vi; ps | grep -c '[s]leep 81'; env | sort"

    before = containers_of(os.getpid())  # pools that last until this process ends

    async def call():
        pool = ContainerPool(ContainerOptions(container="podman", image=busybox_image(), warm_containers=2))
        seen, names = [], set()
        for _ in range(4):
            session = pool.session()
            seen.append((await session.shell(look)).output)
            names.add(session.name)
            await session.shell(marks)
            session.close()
        pool.close()
        return seen, names

    seen, names = asyncio.run(call())
    assert len(names) == 4
    assert set(seen) == {seen[0]}
    assert "secret" not in seen[0]
    assert set(containers_of(os.getpid())) <= set(before)


_FILLS = """
import asyncio, sys
from whetstone.sandbox import ContainerOptions, ContainerPool
async def main():
    pool = ContainerPool(ContainerOptions(container="podman", image=sys.argv[1], warm_containers=6))
    await pool.session().start()
    print("ready", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
asyncio.run(main())
"""


def remaining_after(process):
    """Return the containers of an ended process, after its guard and the commands that it left had time to end."""
    deadline = time.monotonic() + 60
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        quiet = 0 if containers_of(process.pid) else quiet + 1
        time.sleep(1)
    return containers_of(process.pid)


@needs_podman
@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_nothing_remains_of_a_pool_that_is_being_filled(seconds):
    words = [sys.executable, "-c", _FILLS, busybox_image(), seconds]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    if seconds != "0":
        process.kill()
    process.wait()
    assert remaining_after(process) == []
