"""The server of sessions: started once, started again when it dies, and nothing is left of it or of what it started."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests_sandbox import QUICK, levels
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox import Ending, Isolation, Limits, Sandbox, offers
from whetstone.sandbox.cgroups import parents


@pytest.fixture(params=levels())
def isolation(request):
    return request.param


def test_the_strongest_is_chosen_and_unsafe_only_where_it_is_written_out():
    best = next(offer.isolation for offer in offers() if not offer.missing)
    if best is not Isolation.UNSAFE:
        assert Sandbox().isolation is best
    else:
        with pytest.raises(SandboxError, match="unsafe"):
            Sandbox()
    assert Sandbox(isolation="unsafe").isolation is Isolation.UNSAFE
    with pytest.raises(SandboxError, match="there are: auto, namespaces"):
        Sandbox(isolation="docker-in-docker")


def test_unsafe_still_has_time_and_memory_limits():
    async def calls():
        sandbox = Sandbox(isolation="unsafe", limits=QUICK)
        session = sandbox.session()
        outcomes = [
            await session.python("bytearray(10**10)"),
            await session.python("while True: pass", wall_seconds=0.3),
        ]
        sandbox.close()
        return [outcome.ending for outcome in outcomes]

    assert asyncio.run(calls()) == [Ending.MEMORY, Ending.TIMEOUT]


def test_a_server_that_dies_breaks_the_calls_under_way_and_is_started_again(isolation):
    async def crash():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        session = sandbox.session()
        assert (await session.python("x = 1")).ending is Ending.OK
        call = asyncio.create_task(session.python("import time\ntime.sleep(30)", wall_seconds=40))
        await asyncio.sleep(0.2)
        sandbox._server.kill()
        if isolation is Isolation.NAMESPACES:  # everything behind it is gone with it
            with pytest.raises(InfrastructureError):
                await call
        else:
            call.cancel()
        again = sandbox.session()
        value = (await again.python("2")).value
        sandbox.close()
        return value, sandbox.restarts

    assert asyncio.run(crash()) == ("2", 1)


def test_a_supervisor_that_dies_is_an_infrastructure_error_and_the_next_call_has_a_new_one(isolation):
    async def crash():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        session = sandbox.session()
        await session.python("1")
        call = asyncio.create_task(session.python("import time\ntime.sleep(30)", wall_seconds=40))
        await asyncio.sleep(0.2)
        os.kill(session.process, signal.SIGKILL)
        with pytest.raises(InfrastructureError):
            await call
        value = (await session.python("3")).value
        sandbox.close()
        return value

    assert asyncio.run(crash()) == "3"


def test_nothing_is_left_when_the_host_is_killed(isolation, tmp_path):
    script = tmp_path / "host.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        from whetstone.sandbox import Sandbox

        async def main():
            sandbox = Sandbox(isolation="{isolation}")
            sessions = [sandbox.session() for _ in range(3)]
            for session in sessions:
                await session.python("open('f', 'w').write('x')")
            calls = [asyncio.create_task(s.shell("sleep 987123")) for s in sessions]
            await asyncio.sleep(0.3)
            print("ready", flush=True)
            await asyncio.sleep(100)

        asyncio.run(main())
        """)
    )
    host = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert host.stdout.readline() == b"ready\n"
    assert alive("sleep\x00987123") >= 3
    host.kill()
    host.wait()
    for _ in range(100):
        if not alive("sleep\x00987123") and not alive("zygote", parent=host.pid):
            break
        time.sleep(0.05)
    assert not alive("sleep\x00987123")
    for _ in range(20):
        asyncio.run(used_once(isolation))  # what only the next one can remove, when nobody is in it any more
        if not things_of(host.pid):
            break
        time.sleep(0.1)
    assert not things_of(host.pid)


async def used_once(isolation):
    sandbox = Sandbox(isolation=isolation, limits=QUICK)
    await sandbox.session().python("1")
    sandbox.close()


def alive(words, parent=None):
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words in text and (parent is None or str(parent) in text):
            count += 1
    return count


def test_hundreds_of_calls_that_end_badly_leave_no_process_file_or_descriptor(isolation):
    quick = Limits(wall_seconds=0.7, memory_mb=64, output_characters=100)
    codes = ["1", "import os\nos._exit(1)", "while True: pass", "bytearray(10**10)", "open('f', 'w').write('x')"]

    async def one(sandbox, number):
        session = sandbox.session()
        outcome = await session.python(codes[number % len(codes)])
        session.close()
        return outcome.ending

    async def soak():
        sandbox = Sandbox(isolation=isolation, limits=quick)
        await one(sandbox, 0)
        before = len(os.listdir("/proc/self/fd"))
        for first in range(0, 60, 20):
            endings = await asyncio.gather(*(one(sandbox, first + i) for i in range(20)))
            kinds = (Ending.OK, Ending.CRASHED, Ending.TIMEOUT, Ending.MEMORY, Ending.OK)
            assert endings == [kinds[(first + i) % 5] for i in range(20)]
        gc.collect()
        after = len(os.listdir("/proc/self/fd"))
        sandbox.close()
        return before, after

    left_before = things_of(os.getpid())
    before, after = asyncio.run(soak())
    assert after <= before
    assert things_of(os.getpid()) <= left_before


def things_of(process):
    """Groups and folders of sessions of a process, those of other tests among them."""
    groups = {folder for parent in parents() for folder in parent.glob(f"whetstone-{process}-*")}
    return groups | set(Path("/tmp").glob(f"whetstone-session-{process}-*"))
