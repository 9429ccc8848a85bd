"""An episode in a sandbox has no effect on the next one in it, nor on the machine."""

import asyncio
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from attack_list import HEADER, family
from support.sandbox import levels, run, server
from support.slow import mostly_slow
from whetstone.sandbox import Ending, Isolation, Sandbox, jail
from whetstone.sandbox.guest import cleanup, confine
from whetstone.sandbox.isolation import exceeds_limits

LIBC = f"MARK = 'it worked'\n{HEADER}"
TO_OTHERS, TO_ITSELF = family("to its beside"), family("carried over")
LOOK = LIBC + (
    "(resource.getrlimit(1), resource.getrlimit(0), os.getpriority(0, 0), os.getpriority(0, os.getppid()),"
    " os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), libc.syscall(252, 1, 0),"
    " oct(os.stat('.').st_mode), os.listxattr('.'), len(os.listdir('.')), len(os.listdir('/dev/shm')))"
)


@pytest.fixture(params=levels())
def isolation(request):
    return request.param


@pytest.mark.parametrize("what", mostly_slow(TO_OTHERS, quick=list(TO_OTHERS)[:3]))
def test_other_processes_are_not_changed(isolation, what):
    before = run(isolation, LOOK)
    tried = run(isolation, LIBC + TO_OTHERS[what])
    assert tried.ending is Ending.ERROR, tried
    assert run(isolation, LOOK).value == before.value
    assert run(isolation, "open('f', 'w').write('x' * 1000)").value == "1000"


@pytest.mark.parametrize("what", mostly_slow(TO_ITSELF, quick=list(TO_ITSELF)[:6]))
def test_changes_to_itself_end_with_the_episode(isolation, what):
    before = run(isolation, LOOK)
    run(isolation, LIBC + TO_ITSELF[what])
    assert run(isolation, LOOK).value == before.value


def test_a_processor_limit_set_from_inside_does_not_kill_the_host(isolation):
    before = Path("/proc/self/limits").read_text()
    run(isolation, LIBC + f"resource.prlimit({os.getpid()}, resource.RLIMIT_CPU, (1, 1))")
    assert Path("/proc/self/limits").read_text() == before


def test_deepest_folders_are_removed(isolation):
    outcome = run(isolation, "import os\nfor i in range(1800):\n    os.mkdir('d')\n    os.chdir('d')\nopen('f', 'w')")
    assert outcome.ending in (Ending.OK, Ending.DISK, Ending.ERROR)
    assert run(isolation, "import os\nos.listdir('.')").value == "[]"


def test_folder_closed_to_its_owner_is_removed(isolation):
    run(isolation, "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0o100)")
    assert run(isolation, "import os\nos.listdir('.')").value == "[]"


def test_uncounted_memory_and_queues_are_refused(isolation):
    for code in (
        "os.memfd_create('x')",
        "assert libc.syscall(206, 64, ctypes.byref(ctypes.c_ulong())) == 0",  # io_setup
        "assert libc.shmget(0, 4096, 0o1600) >= 0",
        "assert libc.syscall(999) != -1 or ctypes.get_errno() == 38",
    ):
        outcome = run(isolation, LIBC + code)
        assert outcome.ending is (Ending.OK if "999" in code else Ending.ERROR), (code, outcome)


def test_threads_that_outlive_the_first_are_ended(isolation):
    code = (
        "import os, threading, time, ctypes\n"
        "if os.fork() == 0:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=False).start()\n"
        "    ctypes.CDLL(None).syscall(60, 0)\n"  # exit of only this thread
    )

    async def left():
        session = server(isolation).session()
        await session.python(code)
        swept = await session.wait_for_cleanup()
        repeated = await session.wait_for_cleanup()
        session.close()
        return swept, repeated

    swept, repeated = asyncio.run(left())
    if isolation is Isolation.NAMESPACES:  # elsewhere children of the interpreter are not visible until it ends
        assert (swept, repeated) == (1, 1)


def test_resources_of_all_sessions_belong_to_none(isolation):
    places = ("/", "/tmp", "/var/tmp", "/dev", "/usr", "/etc", "/proc")
    modes = [stat.S_IMODE(os.stat(place).st_mode) for place in places]
    before = run(isolation, f"import os\n[oct(os.stat(p).st_mode) for p in {places!r}]")
    run(
        isolation,
        f"import os, contextlib\nfor place in {places!r}:\n"
        "    with contextlib.suppress(OSError): os.chmod(place, 0)\n"
        "    with contextlib.suppress(OSError): os.utime(place, (7, 7))\n"
        "    with contextlib.suppress(OSError): open(place + '/whetstone-note', 'w').close()",
    )
    after = run(isolation, f"import os\n[oct(os.stat(p).st_mode) for p in {places!r}]")
    assert after.value == before.value
    assert [stat.S_IMODE(os.stat(place).st_mode) for place in places] == modes
    assert not any(Path(place, "whetstone-note").exists() for place in places)
    shared = [place for place in places if place not in ("/tmp", "/var/tmp")]
    assert run(isolation, f"import os\n[p for p in {shared!r} if os.path.exists(p + '/whetstone-note')]").value == "[]"


def test_world_is_reused(isolation):
    """Reuse a sandbox if they are kept at all: a check that it is clean must not always fail."""

    async def twice():
        sandbox = Sandbox(isolation=isolation)
        processes = []
        for _ in range(2):
            session = sandbox.session()
            await session.python("open('f', 'w').write('x')")
            processes.append(session.process_id)
            session.close()
        sandbox.close()
        return processes, sandbox._reuses_jails

    processes, reused = asyncio.run(twice())
    assert (processes[0] == processes[1]) == reused


def test_server_that_starts_no_more_sessions_is_replaced(isolation, monkeypatch):
    sandbox, begin, failed = Sandbox(isolation=isolation), jail.Jail.start, []

    async def torn(self, started):
        if len(failed) < 2:
            failed.append(1)
            return False
        return await begin(self, started)

    async def live():
        lived = sandbox.session()
        first = await lived.python("x = 1")
        monkeypatch.setattr(jail.Jail, "start", torn)
        session = sandbox.session()
        second, third = await session.python("2"), await lived.python("x")
        for each in (session, lived):
            each.close()
        sandbox.close()
        return first.ending, second.value, third.value

    assert asyncio.run(live()) == (Ending.OK, "2", "1")
    assert sandbox.server.restarts == 1


def test_folder_too_deep_to_be_inspected_counts_as_full(tmp_path):
    limits = server(Isolation.NAMESPACES).limits if not levels()[0].marks else Sandbox(isolation="unsafe").limits
    assert not exceeds_limits(str(tmp_path), limits)
    where = os.open(tmp_path, os.O_RDONLY)
    for _ in range(70):
        os.mkdir("d" * 200, dir_fd=where)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = deeper
    os.close(where)
    assert exceeds_limits(str(tmp_path), limits)
    cleanup.clear_folder(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_emptying_stays_in_the_folder(tmp_path):
    outside, emptied = tmp_path / "kept", tmp_path / "emptied"
    outside.mkdir()
    (outside / "file").write_text("here")
    emptied.mkdir()
    (emptied / "link").symlink_to(outside)
    (emptied / "inner").mkdir()
    (emptied / "inner" / "link").symlink_to(outside / "file")
    (emptied / "whetstone-removing-0").mkdir()
    (emptied / "inner" / "whetstone-removing-0").mkdir()
    (emptied / "inner" / "whetstone-removing-0" / "file").write_text("gone")
    cleanup.clear_folder(str(emptied))
    assert (outside / "file").read_text() == "here"
    assert not list(emptied.iterdir())
    (tmp_path / "way").symlink_to(outside)
    with pytest.raises(OSError, match="way"):
        cleanup.clear_folder(str(tmp_path / "way"))


def ordinary():
    """Return a Python that an ordinary user can run: this one, or that of the system if this one is in a closed
    folder."""
    closed = any(not folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.executable).resolve().parents)
    return shutil.which("python3", path="/usr/bin") if closed else sys.executable


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only a superuser can become another user")
def test_all_of_it_works_for_an_ordinary_user(request):
    # not below the folder of pytest, which each further run of pytest closes to other users
    home = Path(tempfile.mkdtemp(prefix="whetstone-ordinary-"))
    request.addfinalizer(lambda: shutil.rmtree(home, ignore_errors=True))
    os.chown(home, 12345, 12345)
    folders = [path for path in sys.path if path]
    options = [
        "-q",
        "-k",
        "not ordinary_user",
        "--tb=native",  # reading a failure's source fails on some releases of Python 3.11
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(home / "t"),
        str(Path(__file__).with_name("test_attacks.py")),
        str(Path(__file__)),
    ]
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    done = subprocess.run(
        [*become, ordinary(), "-m", "pytest", *options],
        env={
            "HOME": str(home),
            "TMPDIR": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(folders),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_files_of_its_python_are_neither_marked_nor_locked(isolation):
    """Refuse flags, versions and leases, which require only an open file, on readable files."""
    for name in ("flags", "version"):
        number = {"flags": 0x40086602, "version": 0x40087602}[name]
        outcome = run(isolation, LIBC + f"import fcntl\nfcntl.ioctl(open('f', 'w'), {number}, bytes(8))")
        assert "Inappropriate ioctl" in (outcome.error or ""), (name, outcome)
    for what in (1024, 1026):  # a lease, and notifications of changes in a folder
        outcome = run(isolation, LIBC + f"import fcntl\nfcntl.fcntl(os.open('.', os.O_RDONLY), {what}, 1)")
        assert "Operation not permitted" in (outcome.error or ""), outcome


def test_socket_pair_sends_only_to_itself(isolation, tmp_path):
    path = "/var/tmp" if len(str(tmp_path)) > 80 else str(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        where = f"{path}/whetstone-{os.getpid()}-{isolation}"
        listening.bind(where)
        try:
            os.chmod(where, 0o777)
            listening.settimeout(0.2)
            for kind in ("SOCK_DGRAM", "SOCK_RAW"):
                pair = f"import socket\none, other = socket.socketpair(socket.AF_UNIX, socket.{kind})\n"
                outcome = run(isolation, f"{pair}one.sendto(b'out', {where!r})")
                assert outcome.ending is Ending.ERROR, outcome
            with pytest.raises(TimeoutError):
                listening.recv(1)
        finally:
            os.unlink(where)
    assert run(isolation, "import socket\na, b = socket.socketpair()\na.send(b'in')\nb.recv(2)").value == "b'in'"


def test_limited_resources_of_a_user_are_not_taken(isolation):
    """Refuse watchers, pending signals and terminals, which the kernel counts per user or per machine."""
    assert run(isolation, LIBC + "libc.inotify_init()").value == "-1"
    waiting = (
        "import signal, struct\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))\nn = 0\n"
        "said = struct.pack('iii', 40, 0, -1) + bytes(116)\n"
        "while n < 20000 and libc.syscall(129, os.getpid(), 40, said) == 0: n += 1\n"
        "n <= 1024"
    )
    assert run(isolation, LIBC + waiting).value == "True"
    assert run(isolation, "open('/dev/ptmx', 'rb')").ending is Ending.ERROR


def test_guest_gets_no_priority_of_the_host(monkeypatch):
    """Drop inherited limits on priorities: untrusted code has no real time even if the host may."""
    limits = {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (40, 40))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    confine.set_resource_limits(confine.Bounds(0, 8, 64, 1 << 20, 1 << 20, 64))
    assert limits[resource.RLIMIT_RTPRIO] == limits[resource.RLIMIT_NICE] == (0, 0)


def test_reused_world_looks_like_a_new_one(isolation):
    look = "import os\nos.stat('.').st_mtime, oct(os.stat('.').st_mode)"

    async def twice():
        sandbox, messages = Sandbox(isolation=isolation), []
        for _ in range(2):
            session = sandbox.session()
            messages.append((await session.python(look)).value)
            session.close()
        sandbox.close()
        return messages

    first, second = asyncio.run(twice())
    if isolation is Isolation.NAMESPACES:  # elsewhere sandboxes of an ordinary user are not reused
        assert first == second
