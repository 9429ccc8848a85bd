"""Isolation layers for untrusted code: which layers this machine offers, and the commands that start a fork server.

Note:
    No layer is dropped silently. `whetstone doctor` prints the chosen one, a requested layer that is missing is an
    error, and a run without isolation requires `sandbox: unsafe`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from whetstone.errors import SandboxError
from whetstone.sandbox import bubblewrap
from whetstone.sandbox.guest import cleanup, confine, syscalls
from whetstone.sandbox.guest.supervisor import list_descendants
from whetstone.sandbox.limits import Limits

GUEST = Path(__file__).parent / "guest"
WORK = "/session"
"""Working directory of untrusted code if it has a separate file system."""
_MAPPED_USERS = 65536
_MAX_DEPTH = 64
_FOLDERS = "whetstone-session"
_START = (
    "import os, sys; sys.path[:0] = sys.argv.pop(1).split(os.pathsep); sys.argv[0] = 'zygote'; "
    "from whetstone.sandbox.guest.zygote import run_fork_server; run_fork_server()"
)

_PROBE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from whetstone.sandbox.guest.zygote import probe_session; "
    "probe_session(sys.argv[2], sys.argv[3], bool(sys.argv[4]))"
)


class Isolation(StrEnum):
    """Degree of isolation of untrusted code from the machine."""

    NAMESPACES = "namespaces"
    """Bubblewrap: separate namespaces for processes, files, network and users; inside them Landlock, a list of allowed
    system calls, and limits."""
    LANDLOCK = "landlock"
    """Landlock, a list of allowed system calls, and limits: untrusted code cannot signal or slow the machine's
    processes, read or write its files, or open sockets. Weaker than namespaces: the existence of files can be tested;
    process numbers are visible; a child process can outlive its call; folders and unlinked open files are checked five
    times per second instead of bounded, and files of a process that hides from its own user are not seen; sessions of
    an ordinary user all run as that user, and cannot set modes and times of files. Weaker without control groups, here
    and with namespaces: memory is bounded per process instead of in total, and the kernel's memory for open pipes and
    sockets only by their number."""
    CONTAINER = "container"
    """A container runtime that you name (`container:`), with Landlock, the list of system calls and limits inside it as
    far as it permits them. The container limits the bytes that a session can write."""
    UNSAFE = "unsafe"
    """Limits on a process and nothing else: untrusted code can read and write everything that the user can."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Availability of one isolation layer on this machine."""

    isolation: Isolation
    """Isolation layer."""
    missing: str = ""
    """Cause and remedy if the layer is not available; empty if it is."""
    remedy: str = ""
    """Command, setting or option that makes the layer available; part of `missing`."""


@functools.cache
def list_isolation_layers() -> tuple[Offer, ...]:
    """Return every isolation layer with its availability on this machine, strongest first.

    The machine is probed once per process.
    """
    return (
        _offer_namespaces(),
        _offer_landlock(),
        Offer(Isolation.CONTAINER, "requires `container`, the command that starts one"),
        Offer(Isolation.UNSAFE),
    )


def strongest_layer() -> Isolation | None:
    """Return the strongest available layer of this machine.

    The result is None if only `unsafe` is available.
    """
    return next(
        (o.isolation for o in list_isolation_layers() if not o.missing and o.isolation is not Isolation.UNSAFE), None
    )


_REQUIRED: list[Isolation] = []


def require_isolation(least: Isolation | None) -> None:
    """Make `auto` reject layers weaker than `least` in this process; None permits all.

    Workers on other machines of a run then have at least the isolation of the run's first machine.
    """
    _REQUIRED[:] = [] if least is None else [least]


def choose_isolation(wanted: str, container: Sequence[str] = ()) -> Isolation:
    """Return the isolation layer to use on this machine.

    If `auto` gives a layer weaker than `namespaces`, the missing guarantees and the remedy are logged once.

    Args:
        wanted: `auto` for the strongest available layer, or the name of a layer.
        container: Command that starts a container; see `container_command`.

    Raises:
        SandboxError: If the layer is not available; the message names the remedy.
    """
    if container and wanted in ("auto", Isolation.CONTAINER):
        for word in ("{guest}", "{sockets}"):
            if not any(word in part for part in container):
                raise SandboxError(f"container: {word} is missing; add it to the mounts of the command")
        if shutil.which(container[0]) is None:
            raise SandboxError(f"container: there is no program {container[0]}; install it, or correct the command")
        return Isolation.CONTAINER
    if wanted == "auto":
        for offer in list_isolation_layers():
            if not offer.missing and offer.isolation is not Isolation.UNSAFE:
                if _REQUIRED and _is_weaker(offer.isolation, _REQUIRED[0]):
                    missing = next(o.missing for o in list_isolation_layers() if o.isolation is _REQUIRED[0])
                    raise SandboxError(
                        f"sandbox: isolation {offer.isolation} is weaker than {_REQUIRED[0]} of the run ({missing})"
                    )
                if missing_guarantees(offer.isolation):
                    _warn_once(offer.isolation, list_isolation_layers()[0].missing)
                return offer.isolation
        reasons = " · ".join(f"{o.isolation}: {o.missing}" for o in list_isolation_layers() if o.missing and o.remedy)
        raise SandboxError(f"sandbox: no isolation is available ({reasons}); `sandbox: unsafe` runs code without any")
    layer = next((offer for offer in list_isolation_layers() if offer.isolation == wanted), None)
    if layer is None:
        raise SandboxError(f'sandbox: no isolation named "{wanted}"; use one of: auto, {", ".join(Isolation)}')
    if layer.missing:
        raise SandboxError(f"sandbox: isolation {wanted} is not available: {layer.missing}")
    return layer.isolation


def _is_weaker(one: Isolation, other: Isolation) -> bool:
    order = [offer.isolation for offer in list_isolation_layers()]
    return order.index(one) > order.index(other)


def missing_guarantees(isolation: Isolation) -> str:
    """Return the guarantees of `namespaces` that a layer does not give, as a sentence.

    The result is empty if it gives all.
    """
    if isolation is Isolation.LANDLOCK:
        same = "" if has_own_users(isolation) else "; all sessions run as you"
        return (
            "untrusted code can test which files of the machine exist and see process numbers, its child processes can "
            f"outlive a call, and disk use is checked five times a second instead of bounded{same}"
        )
    if isolation is Isolation.UNSAFE:
        return "there is no isolation: untrusted code reads, writes, signals and connects as you"
    return ""  # the guarantees of a container are those of its runtime


@functools.cache
def _warn_once(isolation: Isolation, missing: str) -> None:
    logging.getLogger("whetstone").warning(
        "sandbox: isolation is %s instead of %s: %s. Cause and remedy: %s",
        *(isolation, Isolation.NAMESPACES, missing_guarantees(isolation), missing),
    )


@functools.cache
def log_container_guarantees(*, seccomp: bool, landlock: bool) -> None:
    """Log once which guarantees the sandbox itself cannot add inside a container."""
    missing = [] if seccomp else ["system calls are not filtered (its image has no libseccomp.so.2)"]
    missing += [] if landlock else ["only separate users isolate its sessions (its Landlock is older than Linux 6.12)"]
    logging.getLogger("whetstone").warning("sandbox: it runs in a container, in which %s", "; ".join(missing))


def has_own_users(isolation: Isolation) -> bool:
    """Return whether each session of a layer can run as a separate user, which only a superuser can arrange."""
    if isolation in (Isolation.UNSAFE, Isolation.CONTAINER) or os.getuid() != 0:
        return False
    try:
        first, _, count = (int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3])
    except OSError:  # not Linux
        return False
    if first != 0 or count < _MAPPED_USERS:
        return False
    return isolation is Isolation.NAMESPACES or _find_closed_folder() is None


def count_other_processes(isolation: Isolation) -> int:
    """Return the number of other processes and threads that count toward the process limit of a session.

    It is 0 if sessions have separate users or namespaces, because the kernel counts per user.
    """
    if isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or has_own_users(isolation):
        return 0
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            words = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(words["Uid"].split()[0]) == os.getuid():  # the file's owner may differ from the process's
                count += int(words.get("Threads", "1"))
    return count


def temporary_folder() -> str:
    """Return the folder of temporary files in sessions.

    It is `/tmp`, or `/var/tmp` if this Python is installed below `/tmp`, because an empty folder covers it.
    """
    return "/var/tmp" if any(path.startswith("/tmp/") for path in readable_paths()) else "/tmp"


def readable_paths() -> list[str]:
    """Return the paths that untrusted code can read.

    These are the system's programs and libraries, and this Python with its packages.
    """
    prefixes = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    }
    system = ["/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"]
    settings = ["ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "mime.types"]
    inside = [*system, *(f"/etc/{name}" for name in settings)]
    inside += sorted(prefix for prefix in prefixes if not f"{prefix}/".startswith("/usr/"))
    return [path for path in inside if os.path.lexists(path)]


def server_command(isolation: Isolation, channel: int, control: int) -> list[str]:
    """Return the command that starts the fork server with a layer.

    Args:
        isolation: Isolation layer.
        channel: File descriptor of the socket for settings, which the process inherits.
        control: File descriptor of the socket for requests, which the process inherits.
    """
    python = [sys.executable, "-I", "-X", "frozen_modules=on", "-c", _START]
    numbers = [str(channel), str(control)]
    if isolation is not Isolation.NAMESPACES:
        places = [str(GUEST.parents[2]), *([os.path.dirname(_find_pyseccomp())] if _find_pyseccomp() else [])]
        return [*python, os.pathsep.join(places), *numbers]
    return [*_bubblewrap(find_bwrap()), "--", *python, "/sandbox", *numbers]


def container_command(container: Sequence[str], guest: str, sockets: str) -> list[str]:
    """Return the command that starts the fork server in a container.

    Args:
        container: Command of the runtime, including the Python inside. `{guest}` and `{sockets}` in it become folders
            of this machine, to be mounted on `/sandbox` (read-only) and `/run/whetstone`: `docker run --rm --network
            none -v {guest}:/sandbox:ro -v {sockets}:/run/whetstone IMAGE python3`.
        guest: Folder with the code that runs inside.
        sockets: Folder of the sockets through which the server connects to the host.
    """
    words = [word.replace("{guest}", guest).replace("{sockets}", sockets) for word in container]
    return [*words, "-I", "-c", _START, "/sandbox", "/run/whetstone"]


def guest_folder() -> str:
    """Create a folder with a copy of the guest code, to mount into a container, and return its path."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDERS}-{os.getpid()}-"))
    package = folder / "whetstone"
    shutil.copytree(GUEST, package / "sandbox" / "guest", ignore=shutil.ignore_patterns("__pycache__"))
    for place in (package, package / "sandbox"):
        shutil.copy(GUEST / "__init__.py", place / "__init__.py")
    if filters := _find_pyseccomp():
        shutil.copy(filters, folder / "pyseccomp.py")
    folder.chmod(0o755)
    return str(folder)


def guest_environment() -> dict[str, str]:
    """Return the environment variables of untrusted code; all others are removed."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")}
    return {
        **threads,
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # so that a repeated session is the same session
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{temporary_folder()}/matplotlib",
        "TMPDIR": temporary_folder(),
    }


def find_bwrap() -> str:
    """Return the path of the first `bwrap` that creates namespaces here; empty if none does.

    The system's executable is preferred to the wheel's.
    """
    return _probe_namespaces()[0]


def _bubblewrap(program: str) -> list[str]:
    """Return the bubblewrap command of the fork server, without the program that runs in it.

    Only read-only binds: below a folder that a session can write, bubblewrap before 0.12 follows a session's symbolic
    links when it creates mount points (CVE-2026-87766).
    """
    assert program  # it was tried before it was chosen
    arguments = [program, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    arguments += ["--unshare-cgroup-try", "--as-pid-1", "--hostname", "sandbox", "--new-session", "--clearenv"]
    if has_own_users(Isolation.NAMESPACES):
        # the server creates namespaces and changes users; sessions drop these capabilities
        for name in ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL", "SYS_RESOURCE"):
            arguments += ["--cap-add", f"CAP_{name}"]
    else:
        arguments += ["--unshare-user", "--cap-add", "ALL"]
    for name, value in guest_environment().items():
        arguments += ["--setenv", name, value]
    # before the other mounts, some of which may be inside them
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]
    # folders above a bound path would be closed to other users
    above = {str(folder) for path in readable_paths() for folder in Path(path).parents} - {"/", "/tmp", "/var/tmp"}
    for folder in sorted(above):
        arguments += ["--perms", "0755", "--dir", folder]
    for path in readable_paths():
        if os.path.islink(path) and path.count("/") == 1:
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]
    arguments += guest_mounts()
    # shared by all sessions, so that none may change them or their modes; an ordinary user owns the folders made here
    shared = ["/", "/dev", *(folder for folder in ("/tmp", "/var/tmp") if folder != temporary_folder())]
    arguments += ["--dir", WORK, *(word for folder in shared for word in ("--remount-ro", folder))]
    return [*arguments, "--chdir", "/"]


def guest_mounts() -> list[str]:
    """Return the bubblewrap arguments that mount the guest code at `/sandbox`."""
    arguments = []
    for folder in ("/sandbox", "/sandbox/whetstone", "/sandbox/whetstone/sandbox"):
        arguments += ["--perms", "0755", "--dir", folder]
    for place in ("", "sandbox/"):  # lazy exports would import modules that are missing here
        arguments += ["--ro-bind", str(GUEST / "__init__.py"), f"/sandbox/whetstone/{place}__init__.py"]
    arguments += ["--ro-bind", str(GUEST), "/sandbox/whetstone/sandbox/guest"]
    if filters := _find_pyseccomp():
        arguments += ["--ro-bind", filters, "/sandbox/pyseccomp.py"]
    return arguments


def _find_pyseccomp() -> str:
    """Return the path of the module `pyseccomp`, which untrusted code may not be able to read.

    Empty if not installed.
    """
    spec = importlib.util.find_spec("pyseccomp")
    return spec.origin if spec is not None and spec.origin is not None else ""


def _offer_namespaces() -> Offer:
    program, programs, error = _probe_namespaces()
    if program:
        return Offer(Isolation.NAMESPACES)
    needs = not has_own_users(Isolation.NAMESPACES) if sys.platform.startswith("linux") else True
    diagnosis = bubblewrap.diagnose_namespaces(bubblewrap.read_facts(programs, error=error, needs_user_namespace=needs))
    return Offer(Isolation.NAMESPACES, f"{diagnosis.cause}; {diagnosis.remedy}", diagnosis.remedy)


@functools.cache
def _probe_namespaces() -> tuple[str, bubblewrap.Programs, str]:
    """Try each `bwrap` with a probe session.

    Returns:
        (path of the first one that works, empty if none does; all executables; error of the preferred one).
    """
    if not sys.platform.startswith("linux"):
        return "", bubblewrap.Programs(()), ""
    programs, errors = bubblewrap.find_programs(), []
    arguments = ["/sandbox", WORK, temporary_folder(), "own" if has_own_users(Isolation.NAMESPACES) else ""]
    for program in programs.paths:
        command = [*_bubblewrap(program), "--", sys.executable, "-I", "-c", _PROBE, *arguments]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            errors.append(str(error))
            continue
        if "ready" in tried.stdout:
            return program, programs, ""
        errors.append((tried.stderr.strip().splitlines() or ["no reason given"])[-1])
    return "", programs, errors[0] if errors else ""


def _offer_landlock() -> Offer:
    def missing(cause: str, remedy: str) -> Offer:
        return Offer(Isolation.LANDLOCK, f"{cause}; {remedy}", remedy)

    if not sys.platform.startswith("linux"):
        return missing("needs Linux", "run untrusted code in a container (`container:`)")
    if not confine.FILTERS:
        return missing("libseccomp is not installed", "apt-get install libseccomp2")
    if syscalls.landlock_version() < 6:
        return missing("the kernel's Landlock does not restrict signals", "use Linux 6.12 or newer")
    if os.getuid() == 0 and not has_own_users(Isolation.LANDLOCK):
        if (closed := _find_closed_folder()) is None:
            return missing("the superuser cannot become another user here", "run as an ordinary user")
        return missing(
            f"a superuser's sessions run as other users, which cannot enter {closed}",
            f"use namespaces, or chmod o+x {shlex.quote(closed)}",
        )
    return Offer(Isolation.LANDLOCK)


def _find_closed_folder() -> str | None:
    """Return the first folder on the path to this Python that another user cannot enter.

    The result is None if there is none.
    """
    for path in map(Path, readable_paths()):
        for folder in (path, *path.parents):
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
    return None


def private_folder() -> str:
    """Create a folder on this machine for a session that has no separate file system, and return its path."""
    return tempfile.mkdtemp(prefix=f"{_FOLDERS}-{os.getpid()}-")


def exceeds_limits(folder: str, limits: Limits, process: int = 0) -> bool:
    """Return whether a folder exceeds the limits on bytes, number of files or depth.

    Args:
        folder: Folder of a session.
        limits: Limits of the session.
        process: Process id whose descendants write to the folder; their unlinked open files count, too. 0: none.
    """
    size, count = (_count_unlinked_bytes(process) if process else 0), 0
    if size > limits.kernel_limits.folder:
        return True
    try:
        for depth, entry in _iterate_entries(folder):
            count += 1
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
            if size > limits.kernel_limits.folder or count > limits.files or depth > _MAX_DEPTH:
                return True
    except OSError as error:  # the path is too long, or an entry was deleted meanwhile
        return error.errno == errno.ENAMETOOLONG
    return False


def _count_unlinked_bytes(process: int) -> int:
    """Return the disk space in bytes of unlinked files that a process and its descendants have open.

    Each counts once.
    """
    sizes: dict[tuple[int, int], int] = {}
    for pid in list_descendants(process):
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
            for file in files:
                with contextlib.suppress(OSError):
                    state = file.stat()
                    if stat.S_ISREG(state.st_mode) and state.st_nlink == 0:
                        sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(sizes.values())


def _iterate_entries(folder: str) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """Yield (depth, entry) of everything below a folder.

    Folders deeper than 64 levels are not entered.
    """
    pending = [(1, folder)]
    while pending:
        depth, path = pending.pop()
        with contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                yield depth, entry
                if entry.is_dir(follow_symlinks=False) and depth <= _MAX_DEPTH:
                    pending.append((depth + 1, entry.path))


def remove_folder(folder: str) -> bool:
    """Delete a session's folder, of any depth and with any modes; return whether it is gone."""
    try:
        cleanup.clear_folder(folder)
        os.rmdir(folder)
    except FileNotFoundError:
        return not os.path.lexists(folder)
    except OSError:
        return False
    return True


def remove_leftover_folders() -> None:
    """Delete session folders of host processes that ended without deleting them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}-*-*"):
        if not Path(f"/proc/{folder.name.split('-')[-2]}").exists():
            remove_folder(str(folder))
