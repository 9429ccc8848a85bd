"""Attacks of untrusted code: each has one outcome, and the machine stays usable."""

import asyncio
import os
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attack_list import HEADER, Reach, family
from support.sandbox import QUICK, levels, run, server
from support.slow import mostly_slow
from whetstone.sandbox import Ending, Isolation, Limits
from whetstone.sandbox.cgroups import list_parent_groups

NAMESPACES = Isolation.NAMESPACES


@pytest.fixture(params=levels())
def isolation(request):
    return request.param


def still_works(isolation):
    return run(isolation, "6 * 7").value == "42"


def processes_named(name):
    """Return the processes of this machine with this word in their command line."""
    matching = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes():
                matching.append(int(path.parent.name))
        except OSError:
            continue
    return matching


def processes_end(name):
    """Return whether all such processes end within moments."""
    for _ in range(100):
        if not processes_named(name):
            return True
        time.sleep(0.05)
    return False


def test_fork_bomb_is_refused_processes_and_cleaned_up(isolation):
    async def bomb():
        session = server(isolation).session()
        outcome = await session.python("import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(60)")
        swept = await session.wait_for_cleanup()
        session.close()
        return outcome, swept

    outcome, swept = asyncio.run(bomb())
    assert outcome.ending is Ending.ERROR
    assert "Resource temporarily unavailable" in outcome.error
    if isolation is NAMESPACES:  # elsewhere children of the interpreter are not visible until it ends
        assert 5 <= swept <= QUICK.processes
    assert still_works(isolation)


def test_fork_bomb_of_the_shell_ends_with_its_time(isolation):
    outcome = run(isolation, "b() { b | b & b; }; b", do="shell")
    assert outcome.ending in (Ending.OK, Ending.TIMEOUT, Ending.CRASHED, Ending.OUTPUT)
    assert still_works(isolation)


@pytest.mark.slow
def test_restless_fork_bomb_is_ended(isolation):
    code = """
import os
if os.fork() == 0:
    while True:
        try:
            os.fork()
        except OSError:
            pass
        if os.getpid() % 3 == 0:
            os._exit(0)
"""
    outcome = run(isolation, code)
    assert outcome.ending in (Ending.OK, Ending.CRASHED)
    assert still_works(isolation)


def test_memory_bomb_gets_a_memory_error_and_the_interpreter_survives(isolation):
    first, second = run(isolation, "x = 1\ny = bytearray(10**10)", "x")
    assert (first.ending, second.value) == (Ending.MEMORY, "1")
    assert "MemoryError" in first.error


def test_processes_of_a_memory_bomb_are_ended(isolation):
    name = f"whetstone-bomb-{isolation}-{os.getpid()}"
    code = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', {name!r}], start_new_session=True)
import time; time.sleep(0.2)
bytearray(10**10)
"""

    async def bomb():
        session = server(isolation).session()
        outcome = await session.python(code)
        await session.wait_for_cleanup()
        swept = (
            processes_end(name) if isolation is NAMESPACES else True
        )  # elsewhere children are not visible until the end
        session.close()
        return outcome, swept

    outcome, swept = asyncio.run(bomb())
    assert (outcome.ending, outcome.restarted, swept) == (Ending.MEMORY, False, True)
    assert processes_end(name)


@pytest.mark.slow
def test_memory_bomb_of_small_objects_ends_with_memory(isolation):
    assert run(isolation, "x = []\nwhile True:\n    x.append('a' * 10**6)").ending is Ending.MEMORY
    assert still_works(isolation)


@pytest.mark.slow
def test_memory_of_several_processes_is_added_if_control_groups_exist(isolation):
    code = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(190 << 20)\n"
        "        for i in range(0, len(x), 4096):\n"
        "            x[i] = 1\n"
        "        time.sleep(1.5)\n"
        "        os._exit(0)\n"
        "statuses = [os.wait()[1] for _ in range(8)]\n"
        "any(statuses)"
    )
    if not list_parent_groups():
        pytest.skip("control groups are not writable here: run as a superuser, or have them delegated")
    outcome = run(isolation, code, limits=replace(QUICK, wall_seconds=30.0))
    assert outcome.value == "True" or outcome.ending is Ending.MEMORY, outcome
    assert still_works(isolation)


def test_filling_the_disk_ends_at_the_folders_size(isolation):
    code = "import itertools\nfor i in itertools.count():\n    open(f'f{i}', 'wb').write(bytes(4 << 20))"
    for place in ("", "/tmp/", "/var/tmp/", "/dev/shm/"):
        outcome = run(isolation, code.replace("f{i}", f"{place}f{{i}}"))
        if isolation is not NAMESPACES and not place:
            assert outcome.ending is Ending.DISK
            continue
        assert outcome.ending is Ending.ERROR
        assert any(w in outcome.error for w in ("No space left", "Permission denied", "Read-only file system"))


@pytest.mark.parametrize("level", levels(NAMESPACES, Isolation.LANDLOCK, Isolation.UNSAFE))
@pytest.mark.parametrize("in_a_child", [False, True], ids=["itself", "a child of a thread"])
def test_unnamed_files_count_as_files(level, in_a_child):
    code = (
        "import os, time\nheld = []\nfor i in range(12):\n    held.append(open('f', 'wb'))\n"
        "    os.unlink('f')\n    held[-1].write(bytes(4 << 20))\n    held[-1].flush()\ntime.sleep(1.5)\n"
    )
    thread = (
        "import subprocess, sys, threading\n"
        f"run = lambda: subprocess.run([sys.executable, '-c', {code!r}], check=True)\n"
        "t = threading.Thread(target=run)\nt.start()\nt.join()\nraise OSError('No space left, perhaps')"
    )
    outcome = run(level, thread if in_a_child else code, limits=replace(QUICK, wall_seconds=20.0))
    if level is NAMESPACES:
        assert outcome.ending is Ending.ERROR
        assert "No space left" in outcome.error
    else:
        assert outcome.ending is Ending.DISK


def test_one_big_file_ends_at_its_size(isolation):
    outcome = run(isolation, "f = open('f', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))")
    assert outcome.ending is Ending.ERROR
    assert "File too large" in outcome.error


def test_a_million_files_end_at_their_number(isolation):
    outcome = run(isolation, "import itertools\nfor i in itertools.count():\n    open(f'f{i}', 'w')")
    if isolation is NAMESPACES:
        assert outcome.ending is Ending.ERROR
        assert "No space left" in outcome.error
    else:
        assert outcome.ending is Ending.DISK


def test_endless_output_is_ended_and_keeps_its_head_and_tail(isolation):
    patient = replace(QUICK, wall_seconds=30.0, cpu_seconds=20.0)  # the bound on output must apply first
    outcome = run(isolation, "while True:\n    print('all work and no play')", limits=patient)
    assert outcome.ending is Ending.OUTPUT
    assert outcome.output.startswith("all work")
    assert "left out" in outcome.output
    assert len(outcome.output) <= QUICK.output_characters + 100


def test_endless_output_past_the_streams_of_python_is_ended(isolation):
    patient = replace(QUICK, wall_seconds=30.0, cpu_seconds=20.0)
    endless = "import os\nwhile True:\n    os.write(2, b'x' * 65536)"
    assert run(isolation, endless, limits=patient).ending is Ending.OUTPUT
    assert run(isolation, "yes", do="shell", limits=patient).ending is Ending.OUTPUT


def test_endless_loop_ends_with_its_time_despite_blocked_signals(isolation):
    code = (
        "import signal\n"
        "for s in range(1, 65):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "while True: pass"
    )
    first, second = run(isolation, code, "'next'", limits=Limits(wall_seconds=0.5))
    assert (first.ending, first.restarted) == (Ending.TIMEOUT, True)
    assert "longer than 0.5 s" in first.error
    assert second.value == "'next'"


def test_infinite_sleep_ends_with_its_time(isolation):
    code = "import time\nwhile True:\n    try:\n        time.sleep(1000)\n    except BaseException:\n        pass"
    assert run(isolation, code, limits=Limits(wall_seconds=0.3)).ending is Ending.TIMEOUT


@pytest.mark.slow
def test_infinite_computation_ends_with_its_processor_time(isolation):
    outcome = run(isolation, "while True: pass", limits=Limits(wall_seconds=20, cpu_seconds=1))
    assert outcome.ending is Ending.CPU


def test_files_of_the_machine_cannot_be_read(isolation):
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("the answer is 17")
        secret.flush()
        Path(secret.name).chmod(0o644)
        paths = [secret.name, "/etc/passwd", "/etc/shadow", str(Path(__file__)), "/proc/1/environ"]
        for path in paths:
            outcome = run(isolation, f"open({path!r}).read()")
            assert outcome.ending is Ending.ERROR, path
            assert "FileNotFoundError" in outcome.error or "PermissionError" in outcome.error, path


def test_environment_variables_of_the_machine_are_hidden(isolation, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-secret")
    outcome = run(isolation, "import os\n'API_KEY' in os.environ, sorted(os.environ)")
    assert outcome.value.startswith("(False")
    assert "USER" not in outcome.value


@pytest.mark.parametrize("what", mostly_slow(family("network"), quick=list(family("network"))[:4]))
def test_neither_loopback_nor_the_network_is_reachable(isolation, what):
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0whetstone-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        listening.settimeout(0.2)
        reach = Reach(PORT=listening.getsockname()[1], ABSTRACT=name)
        outcome = run(isolation, HEADER + reach.code + family("network")[what])
        with pytest.raises(TimeoutError):
            listening.accept()
        abstract.setblocking(False)
        with pytest.raises(BlockingIOError):
            abstract.accept()
    assert outcome.ending in (Ending.ERROR, Ending.CRASHED)
    assert reach.MARK not in outcome.output


def test_names_are_not_resolved(isolation):
    outcome = run(isolation, "import socket\nsocket.getaddrinfo('example.com', 80)")
    assert outcome.ending is Ending.ERROR


def test_interpreter_is_read_only(isolation):
    import json

    marker = Path(json.__file__)
    before = marker.read_bytes()
    for path in (str(marker), sys.executable, os.path.join(os.path.dirname(json.__file__), "planted.py"), "/usr/bin/x"):
        outcome = run(isolation, f"open({path!r}, 'a').write('#')")
        assert outcome.ending is Ending.ERROR, path
        assert any(word in outcome.error for word in ("Read-only", "Permission denied", "Text file busy")), (
            outcome.error
        )
    assert marker.read_bytes() == before


def test_links_and_dots_stay_in_the_folder(isolation):
    file = Path(__file__)
    code = f"""
import os
os.symlink({str(file)!r}, 'link')
os.symlink('/', 'root')
found = []
for path in ['link', 'root{file}', '../../../../../..{file}', '/proc/self/root{file}', '/proc/self/cwd/../..{file}']:
    try:
        found.append(open(path).read()[:20])
    except OSError as error:
        found.append(type(error).__name__)
found
"""
    outcome = run(isolation, code)
    assert outcome.ending is Ending.OK, outcome.error
    assert set(eval(outcome.value)) <= {"FileNotFoundError", "PermissionError"}


def test_link_in_the_folder_is_not_followed_by_reading_from_outside(isolation):
    async def read():
        session = server(isolation).session()
        await session.python(f"import os\nos.symlink({__file__!r}, 'link')")
        outcome = await session.read("link")
        session.close()
        return outcome

    assert asyncio.run(read()).ending is Ending.ERROR


def test_parent_can_be_neither_traced_nor_read(isolation):
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
said = []
for pid in (1, os.getppid(), {os.getpid()}):
    said.append(libc.ptrace(16, pid, 0, 0))
    for name in ('mem', 'environ', 'fd/0', 'root/etc/passwd', 'cwd'):
        try:
            os.readlink(f'/proc/{{pid}}/{{name}}') if name == 'cwd' else open(f'/proc/{{pid}}/{{name}}', 'rb').read(1)
            said.append(name)
        except OSError:
            said.append(-1)
    buffer = ctypes.create_string_buffer(8)
    said.append(libc.process_vm_readv(pid, buffer, 1, buffer, 1, 0))
set(said)
"""
    outcome = run(isolation, code)
    assert outcome.value == "{-1}", outcome


def test_neither_the_parent_nor_the_host_can_be_killed(isolation):
    code = f"""
import os, signal
said = []
for pid in (1, {os.getpid()}, {os.getppid()}):
    try:
        os.kill(pid, signal.SIGTERM if pid == 1 else 0)
        said.append('sent')
    except OSError as error:
        said.append(type(error).__name__)
said
"""
    outcome, after = run(isolation, code, "'alive'")
    assert set(eval(outcome.value)) <= {"PermissionError", "ProcessLookupError"}
    assert after.value == "'alive'"


def test_killing_all_processes_kills_only_its_own(isolation):
    outcome = run(isolation, "import os, signal\nos.kill(-1, signal.SIGKILL)\n'sent'")
    assert outcome.ending in (Ending.OK, Ending.CRASHED, Ending.ERROR)
    assert still_works(isolation)


def test_supervisor_cannot_be_killed(isolation):
    async def kill():
        session = server(isolation).session()
        other = server(isolation).session()
        await other.python("x = 5")
        outcome = await session.python("import os\ntry:\n    os.kill(os.getppid(), 9)\nexcept OSError:\n    pass\n1")
        value = await other.python("x")
        session.close()
        other.close()
        return outcome, value

    outcome, value = asyncio.run(kill())
    assert (outcome.value, value.value) == ("1", "5")


@pytest.mark.parametrize("signal", [9, 19], ids=["killed", "stopped"])
@pytest.mark.parametrize("level", levels(*Isolation))
def test_call_that_kills_its_supervisor_is_a_crash(level, signal, monkeypatch):
    monkeypatch.setattr("whetstone.sandbox.session._END_SECONDS", 1.0)
    code = f"import os, time\ntry:\n    os.kill(os.getppid(), {signal})\nexcept OSError:\n    pass\ntime.sleep(0.5)\n7"
    first, second, third = run(level, code, "8", "9")
    assert first.value == "7" or first.ending is Ending.CRASHED
    assert second.value == "8" or second.ending is Ending.CRASHED
    assert (third.ending, third.value) == (Ending.OK, "9")


def test_response_with_invalid_numbers_is_at_most_text(isolation):
    forge = (
        "import os, json, struct\n"
        "b = json.dumps({'number': 1, 'value': 'x', 'cpu': CPU, 'exit_code': 10**18}).encode()\n"
        "for fd in range(3, 20):\n    try: os.write(fd, struct.pack('!I', len(b)) + b)\n    except OSError: pass\n"
        "import time; time.sleep(0.2)"
    )
    for cpu in ("10**400", "-1", "float('nan')", "1e999", "[1]", "10**300"):
        outcome = run(isolation, forge.replace("CPU", cpu))
        assert outcome.ending in (Ending.OK, Ending.CRASHED), cpu
        assert 0 <= outcome.cpu_seconds < 1e9


def test_values_with_failing_representations_cost_one_call(isolation):
    for expression in (
        "'x' * 10**8",
        "5",
        "None",
        "1/0",
        "(_ for _ in ()).throw(KeyboardInterrupt)",
        "'\\ud800' * 9",
        "repr(self)",
    ):
        outcome = run(isolation, f"class Odd:\n    def __repr__(self): return {expression}\nOdd()")
        assert outcome.ending in (Ending.OK, Ending.ERROR, Ending.CRASHED, Ending.MEMORY), expression
        assert len(outcome.value or "") <= QUICK.output_characters + 100
    assert still_works(isolation)


def test_exhausted_descriptors_are_an_error_of_the_call(isolation):
    first, second = run(isolation, "x = []\nwhile True:\n    x.append(open('/dev/null'))", "del x\n2")
    assert first.ending is Ending.ERROR
    assert "Too many open files" in first.error
    assert second.value == "2"


def test_daemons_are_ended_with_the_call(isolation):
    name = f"whetstone-daemon-{isolation}-{os.getpid()}"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)', {name!r}])
    os._exit(0)
os.wait()
time.sleep(0.3)
"""

    async def leave():
        session = server(isolation).session()
        outcome = await session.python(code)
        assert outcome.ending is Ending.OK, outcome.error
        assert await session.wait_for_cleanup() >= 1
        assert processes_end(name)
        session.close()

    asyncio.run(leave())


@pytest.mark.slow
def test_daemons_are_ended_with_an_interrupted_session(isolation):
    name = f"whetstone-hang-{isolation}-{os.getpid()}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)', {name!r}])"

    async def cut_off():
        session = server(isolation).session()
        call = asyncio.create_task(session.python(code))
        for _ in range(100):
            if processes_named(name):
                break
            await asyncio.sleep(0.05)
        assert processes_named(name)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cut_off())
    assert processes_end(name)


def test_binary_output_is_returned_as_text(isolation):
    outcome = run(isolation, r"import os; os.write(1, b'\xff\xfe caf\xc3\xa9 \x00 \x1b[31m'); '\udcff'")
    assert outcome.ending is Ending.OK
    assert "café" in outcome.output
    outcome.output.encode()
    outcome.value.encode()


def test_huge_integers_and_values_stay_in_the_guest(isolation):
    outcome = run(isolation, "10 ** 100000")
    assert outcome.ending is Ending.ERROR
    assert "Exceeds the limit" in outcome.error
    assert len(run(isolation, "'x' * 10**7").value) <= QUICK.output_characters + 100


def test_forged_response_is_only_text(isolation):
    forge = """
import os, json, struct
frames = [{frame}]
for fd in range(3, 20):
    for f in frames:
        try: os.write(fd, f)
        except OSError: pass
import time; time.sleep(0.2)
"""
    pickled = "b'\\x00\\x00\\x00\\x10' + b'cos\\nsystem\\n(S\\'true\\''[:16]"
    assert run(isolation, forge.format(frame=pickled)).ending is Ending.CRASHED
    endless = "struct.pack('!I', 2**32 - 1) + b'x'"
    assert run(isolation, forge.format(frame=endless)).ending is Ending.CRASHED
    framed = "(lambda b: struct.pack('!I', len(b)) + b)(json.dumps({'number': NUMBER, REST}).encode())"
    for number, rest in (
        (1, "'value': 10**400"),
        (1, "'images': [7]"),
        (1, "'images': ['%']"),
        (1, "'value': {}"),
        (1, "'error': 5, 'exit_code': 'a'"),
        (7, "'value': 'mine'"),
    ):
        forged = framed.replace("NUMBER", str(number)).replace("REST", rest)
        assert run(isolation, forge.replace("{frame}", forged)).ending is Ending.CRASHED, rest
    plausible = framed.replace("NUMBER", "1").replace("REST", "'value': 'mine'")
    assert run(isolation, forge.replace("{frame}", plausible)).value == "mine"
    assert still_works(isolation)


def test_unrequested_response_costs_only_the_next_call(isolation):
    code = """
import json, os, struct, threading, time
body = json.dumps({'number': 2, 'value': 'mine'}).encode()
def flood():
    time.sleep(0.2)
    while True:
        for fd in range(3, 20):
            try: os.write(fd, struct.pack('!I', len(body)) + body)
            except OSError: pass
threading.Thread(target=flood, daemon=True).start()
"""

    async def flooded():
        session = server(isolation).session()
        outcomes = [await session.python(code)]
        await asyncio.sleep(0.5)
        outcomes += [await session.python("1"), await session.python("2")]
        session.close()
        return outcomes

    first, second, third = asyncio.run(flooded())
    assert (first.ending, second.ending, third.value) == (Ending.OK, Ending.CRASHED, "2")


def test_objects_with_false_attributes_cost_one_call(isolation):
    code = "class Liar:\n    def __repr__(self): raise SystemExit('no')\nLiar()"
    assert run(isolation, code).ending is Ending.ERROR
    code = "class Odd(Exception):\n    def __str__(self): return 1\nraise Odd"
    assert run(isolation, code).ending is Ending.ERROR
    assert run(isolation, "def f(): f()\nf()").ending is Ending.ERROR
    assert still_works(isolation)


def test_interpreter_crash_costs_only_the_interpreter(isolation):
    first, second = run(isolation, "import ctypes\nctypes.string_at(0)", "1 + 1")
    assert (first.ending, first.restarted, second.value) == (Ending.CRASHED, True, "2")
    assert "SIGSEGV" in first.error
    assert run(isolation, "import os\nos._exit(7)").ending is Ending.CRASHED
    assert run(isolation, "import sys\nsys.exit(3)").error == "SystemExit: 3"


@pytest.mark.parametrize(
    "what",
    mostly_slow(
        [*family("kernel"), *family("privilege")], quick=[*list(family("kernel"))[:4], *list(family("privilege"))[:4]]
    ),
)
def test_kernel_refuses_system_calls_that_escape(isolation, what):
    reach = Reach(SECRET=str(Path(__file__)), HOST=os.getpid())
    outcome = run(isolation, HEADER + reach.code + {**family("kernel"), **family("privilege")}[what])
    assert reach.MARK not in outcome.output, outcome


def test_sessions_do_not_see_each_other(isolation):
    async def two():
        first, second = server(isolation).session(), server(isolation).session()
        await first.python("open('mine', 'w').write('secret')\nimport os\nwhere = os.getcwd()")
        where = eval((await first.python("where")).value)
        try:
            return await second.python(f"import os\nos.listdir('.'), open({where!r} + '/mine').read()")
        finally:
            first.close()
            second.close()

    outcome = asyncio.run(two())
    assert outcome.ending is Ending.ERROR
    assert "FileNotFoundError" in outcome.error or "PermissionError" in outcome.error
