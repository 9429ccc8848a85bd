"""The session server is started once, restarted after a crash, and leaves no process or file."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from attacks import stand_in_runtime
from support.sandbox import MISSING, QUICK, levels, server
from whetstone.cli import doctor
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.sandbox import Ending, Isolation, Limits, Offer, Sandbox, list_isolation_layers
from whetstone.sandbox import isolation as isolation_room
from whetstone.sandbox.cgroups import list_parent_groups

NAMESPACES = Isolation.NAMESPACES


@pytest.fixture(params=levels())
def isolation(request):
    return request.param


def test_strongest_layer_is_chosen_and_unsafe_only_if_it_is_set():
    best = next(offer.isolation for offer in list_isolation_layers() if not offer.missing)
    if best is not Isolation.UNSAFE:
        assert Sandbox().isolation is best
    else:
        with pytest.raises(SandboxError, match="unsafe"):
            Sandbox()
    assert Sandbox(isolation="unsafe").isolation is Isolation.UNSAFE
    with pytest.raises(SandboxError, match="use one of: auto, namespaces"):
        Sandbox(isolation="docker-in-docker")


def test_weaker_layer_is_reported_once(monkeypatch, caplog):
    weaker = (Offer(NAMESPACES, "bubblewrap is not installed"), Offer(Isolation.LANDLOCK), Offer(Isolation.UNSAFE))
    monkeypatch.setattr(isolation_room, "list_isolation_layers", lambda: weaker)
    monkeypatch.setattr(doctor, "list_isolation_layers", lambda: weaker)
    isolation_room._warn_once.cache_clear()
    for _ in range(3):
        assert isolation_room.choose_isolation("auto") is Isolation.LANDLOCK
    (message,) = [record.getMessage() for record in caplog.records]
    assert "isolation is landlock instead of namespaces" in message
    assert "which files of the machine exist" in message
    assert "which files of the machine exist" in doctor.collect_facts()["sandbox"]["does_not_hold"]
    caplog.clear()
    assert isolation_room.choose_isolation("landlock") is Isolation.LANDLOCK  # setting it explicitly needs no warning
    assert not caplog.records


def test_missing_layers_of_a_container_are_reported_once(caplog):
    isolation_room.log_container_guarantees.cache_clear()
    for _ in range(2):
        isolation_room.log_container_guarantees(seccomp=False, landlock=True)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "system calls are not filtered" in message
    assert "only separate users" not in message


@pytest.mark.skipif(bool(MISSING[NAMESPACES]), reason=f"isolation with namespaces: {MISSING[NAMESPACES]}")
def test_named_container_runtime_runs_the_sessions(tmp_path):
    if not Path("/usr/bin/python3").exists():
        pytest.skip("the image needs a Python under /usr: apt-get install python3")

    async def calls():
        sandbox = Sandbox(container=stand_in_runtime(tmp_path), limits=QUICK, preload=["json"])
        assert sandbox.isolation is Isolation.CONTAINER
        first, second = sandbox.session(), sandbox.session()
        try:
            return [
                await first.python("x = 41\nopen('mine', 'w').write('secret')\nimport os\nos.getcwd()"),
                await first.python("x + 1"),
                await second.python(f"open({str(Path(__file__))!r}).read()"),
                await second.python(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"),
                await second.python("while True: pass", wall_seconds=0.3),
                await second.python("2"),
                await second.python("import ctypes\nctypes.CDLL(None).shmget(0, 4096, 0o1600)"),
            ]
        finally:
            sandbox.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        created, stored, reading, network, endless, repeated, shared = asyncio.run(calls())
    assert (created.ending, stored.value, repeated.value) == (Ending.OK, "42", "2")
    assert "session-" in created.value
    assert "No such file" in reading.error or "Permission denied" in reading.error
    assert network.ending is Ending.ERROR
    assert endless.ending is Ending.TIMEOUT
    assert shared.value == "-1"  # calls are filtered though the image has no program that finds the library


def test_container_without_its_mounts_is_refused():
    with pytest.raises(SandboxError, match="is missing; add it to the mounts"):
        Sandbox(container=["docker", "run", "image"])
    with pytest.raises(SandboxError, match="there is no program no-such-runtime"):
        Sandbox(container=["no-such-runtime", "{guest}", "{sockets}"])
    with pytest.raises(SandboxError, match="requires `container`"):
        Sandbox(isolation="container")


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


def test_dead_server_breaks_running_calls_and_is_restarted(isolation):
    async def crash():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        session = sandbox.session()
        assert (await session.python("x = 1")).ending is Ending.OK
        call = asyncio.create_task(session.python("import time\ntime.sleep(30)", wall_seconds=40))
        await asyncio.sleep(0.2)
        os.kill(sandbox.server.pid, signal.SIGKILL)
        if isolation is Isolation.NAMESPACES:  # all its processes end with it
            with pytest.raises(InfrastructureError):
                await call
        else:
            call.cancel()
        restarted = sandbox.session()
        value = (await restarted.python("2")).value
        sandbox.close()
        return value, sandbox.server.restarts

    assert asyncio.run(crash()) == ("2", 1)


def test_dead_supervisor_is_attributed_to_the_call_and_replaced(isolation):
    async def crash():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        session = sandbox.session()
        await session.python("1")
        length = f"30.{os.getpid()}"
        code = f"import subprocess\nsubprocess.run(['sleep', '{length}'])"
        call = asyncio.create_task(session.python(code, wall_seconds=40))
        await asyncio.to_thread(wait_for, f"sleep\x00{length}")
        os.kill(session.process_id, signal.SIGKILL)
        outcome = await call
        value = (await session.python("3", wall_seconds=60)).value
        sandbox.close()
        return outcome, value

    outcome, value = asyncio.run(crash())
    assert (outcome.ending, outcome.restarted, value) == (Ending.CRASHED, True, "3")
    assert "files too, are gone" in outcome.error


def test_session_closed_during_a_call_reports_nothing_about_its_code(isolation):
    async def closed():
        session = server(isolation).session()
        await session.start()
        call = asyncio.create_task(session.python("import time\ntime.sleep(30)", wall_seconds=40))
        await asyncio.sleep(0.5)
        session.close()
        with pytest.raises(InfrastructureError, match="closed"):
            await call

    asyncio.run(closed())


@pytest.mark.slow
def test_nothing_remains_if_the_host_is_killed(isolation, tmp_path):
    words = f"sleep\x00987{os.getpid()}"  # other runs on this machine have theirs
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
            calls = [asyncio.create_task(s.shell("sleep 987{os.getpid()}", wall_seconds=600)) for s in sessions]
            print("ready", flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
        """)
    )
    host = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert host.stdout.readline() == b"ready\n"
    while alive(words) < 3:
        assert host.poll() is None
        time.sleep(0.05)
    host.kill()
    host.wait()
    for _ in range(1200):
        if not alive(words) and not alive("zygote", parent=host.pid):
            break
        time.sleep(0.05)
    assert not alive(words)
    for _ in range(100):
        asyncio.run(used_once(isolation))  # only the next server can remove folders of ended processes
        if not things_of(host.pid):
            break
        time.sleep(0.1)
    assert not things_of(host.pid)


async def used_once(isolation):
    sandbox = Sandbox(isolation=isolation, limits=QUICK)
    await sandbox.session().python("1")
    sandbox.close()


def wait_for(words):
    """Return when a process with these words in its command line is running."""
    while not alive(words):
        time.sleep(0.05)


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


@pytest.mark.slow
def test_hundreds_of_failing_calls_leave_no_process_file_or_descriptor(isolation):
    quick = Limits(wall_seconds=0.7, memory_mb=64, output_characters=100)
    codes = ["1", "import os\nos._exit(1)", "while True: pass", "bytearray(10**10)", "open('f', 'w').write('x')"]

    async def one(sandbox, number):
        session = sandbox.session()
        outcome = await session.python(codes[number % len(codes)])
        session.close()
        return outcome.ending

    async def soak():
        before = len(os.listdir("/proc/self/fd"))
        sandbox = Sandbox(isolation=isolation, limits=quick)
        for first in range(0, 60, 20):
            endings = await asyncio.gather(*(one(sandbox, first + i) for i in range(20)))
            kinds = (Ending.OK, Ending.CRASHED, Ending.TIMEOUT, Ending.MEMORY, Ending.OK)
            assert endings == [kinds[(first + i) % 5] for i in range(20)]
        sandbox.close()
        gc.collect()
        return before, len(os.listdir("/proc/self/fd"))

    left_before = things_of(os.getpid())
    before, after = asyncio.run(soak())
    assert after <= before
    assert things_of(os.getpid()) <= left_before


def things_of(process):
    """Return control groups and folders of the sessions of a process, including those of other tests."""
    groups = {folder for parent in list_parent_groups() for folder in parent.glob(f"whetstone-{process}-*")}
    return groups | set(Path("/tmp").glob(f"whetstone-session-{process}-*"))


@pytest.mark.slow
def test_more_sessions_than_files_are_open_at_first(isolation):
    code = textwrap.dedent(f"""
        import asyncio, resource
        from whetstone.sandbox import Sandbox

        resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        async def main():
            sandbox = Sandbox(isolation="{isolation}")
            sessions = [sandbox.session() for _ in range(60)]
            outcomes = await asyncio.gather(*(session.python("1") for session in sessions))
            print(sum(outcome.value == "1" for outcome in outcomes))
            sandbox.close()

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "60\n", done.stderr


def test_released_sandbox_is_reused_empty(isolation):
    leave = """
import os, sys, time
open('mine', 'w').write('secret')
os.makedirs('deep/er')
for place in ('/tmp', '/var/tmp', '/dev/shm'):
    try:
        open(f'{place}/mine', 'w').write('secret')
    except OSError:
        pass
os.environ['LEFT'] = 'secret'
sys.modules['left'] = sys
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
"""
    look = """
import os, random, sys
def listed(place):
    try:
        return os.listdir(place)
    except OSError:
        return []
found = [f'{place}/{name}' for place in ('.', '/tmp', '/var/tmp', '/dev/shm')
         for name in listed(place) if 'mine' in name or 'deep' in name]
others = [name for name in listed('/proc') if name.isdigit()]
found, os.environ.get('LEFT'), 'left' in sys.modules, len(others) <= 2, random.random()
"""

    async def twice():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        seen, processes = [], []
        for seed in (1, 2, 1):
            session = sandbox.session(seed=seed)
            seen.append(eval((await session.python(look)).value))
            assert (await session.python(leave)).ending is Ending.OK
            processes.append(session.process_id)
            session.close()
        sandbox.close()
        return seen, processes

    seen, processes = asyncio.run(twice())
    if isolation is NAMESPACES or os.getuid() == 0:  # elsewhere processes are counted for the whole user
        assert processes[0] == processes[1] == processes[2]
    assert [each[:4] for each in seen] == [([], None, False, True)] * 3
    assert seen[0][4] == seen[2][4] != seen[1][4]


def test_sandbox_of_other_limits_or_an_interrupted_call_is_not_reused(isolation):
    async def others():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        first = sandbox.session()
        await first.python("1")
        known = first.process_id
        first.close()
        wider = sandbox.session(limits=Limits(memory_mb=300))
        await wider.python("1")
        assert wider.process_id != known
        second = sandbox.session()
        call = asyncio.create_task(second.python("import time\ntime.sleep(10)"))
        await asyncio.sleep(0.3)
        assert second.process_id == known or (isolation is not NAMESPACES and os.getuid() != 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        third = sandbox.session()
        await third.python("1")
        assert third.process_id != known
        sandbox.close()

    asyncio.run(others())


@pytest.mark.slow
def test_many_short_sequential_sessions_return_correct_results(isolation):
    async def many():
        sandbox = Sandbox(isolation=isolation, limits=QUICK)
        wrong = []
        for number in range(60):
            session = sandbox.session(persistent=number % 3 != 0, seed=number)
            for code, expected in (("'a' + str(1)", "'a1'"), ("import os\nos.listdir()", "[]")):
                outcome = await session.python(code, wall_seconds=60)
                if outcome.value != expected:
                    wrong.append((number, outcome))
            if number % 5 == 0:
                await session.python("import os\nos._exit(3)")
            if number % 7 == 0:
                await session.wait_for_cleanup()
            if number % 2:
                await asyncio.sleep(0.02)  # so that the report on the last call arrives before the end
            session.close()
        sandbox.close()
        return wrong

    assert asyncio.run(many()) == []


def test_session_without_reuse_has_a_new_jail_that_no_other_session_takes(isolation):
    async def processes():
        sandbox = server(isolation)
        numbers = []
        for reuses_jails in (True, False, True, False):
            session = sandbox.session(reuses_jails=reuses_jails)
            await session.start()
            numbers.append(session.process_id)
            session.close()
        return numbers

    first, fresh, second, other = asyncio.run(processes())
    assert fresh not in (first, second)
    assert other not in (first, second)


def test_folder_of_a_session_is_copied_to_another_one(isolation):
    async def copy():
        source, target = (server(isolation).session() for _ in range(2))
        try:
            with tempfile.TemporaryFile() as archive:
                await source.shell("mkdir a; head -c 6000000 /dev/zero > a/big; echo 1 > a/small; ln -s /etc/passwd b")
                folder = source.working_folder
                assert (await source.download_archive(f"{folder}/a", archive)).ending is Ending.OK
                await target.shell("mkdir c; touch c/old")
                copied = await target.upload_archive(archive, f"{target.working_folder}/c")
            assert copied.ending is Ending.OK, copied.error
            return (await target.shell("cd c; wc -c *")).output.split()
        finally:
            source.close()
            target.close()

    assert asyncio.run(copy()) == ["6000000", "big", "2", "small", "6000002", "total"]
