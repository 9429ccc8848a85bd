"""Isolation layers for untrusted code: which of them this machine offers, and the commands that start a fork server.

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
from whetstone.sandbox.guest import confine, emptying, kernel
from whetstone.sandbox.guest.supervisor import family
from whetstone.sandbox.limits import Limits

GUEST = Path(__file__).parent / "guest"
WORK = "/session"
"""The folder foreign code starts in, where it has a file system of its own."""
_MAPPED_USERS = 65536
_MOST_DEPTH = 64
_FOLDERS = "whetstone-session"
_START = (
    "import os, sys; sys.path[:0] = sys.argv.pop(1).split(os.pathsep); sys.argv[0] = 'zygote'; "
    "from whetstone.sandbox.guest.zygote import main; main()"
)

_REHEARSE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from whetstone.sandbox.guest.zygote import rehearse; "
    "rehearse(sys.argv[2], sys.argv[3], bool(sys.argv[4]))"
)


class Isolation(StrEnum):
    """How far foreign code is kept from the machine."""

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
    """A container runtime you name (`container:`): what it keeps in, and inside of it Landlock, the list of system
    calls and limits, as far as it lets them. How much a session may write is the container's own limit."""
    UNSAFE = "unsafe"
    """Limits on a process and nothing else: foreign code can read and write what the user can."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one layer would do here."""

    isolation: Isolation
    missing: str = ""
    """Cause and remedy if it is not available; empty if it is."""
    remedy: str = ""
    """Command, setting or option that makes it available; part of `missing`."""


@functools.cache
def offers() -> tuple[Offer, ...]:
    """Every layer, strongest first."""
    return (
        _offer_namespaces(),
        _offer_landlock(),
        Offer(Isolation.CONTAINER, "only where `container` names what starts one"),
        Offer(Isolation.UNSAFE),
    )


def strongest() -> Isolation | None:
    """The strongest layer of this machine; None where there is none but `unsafe`."""
    return next((o.isolation for o in offers() if not o.missing and o.isolation is not Isolation.UNSAFE), None)


_LEAST: list[Isolation] = []


def hold_to(least: Isolation | None) -> None:
    """Have `auto` choose nothing that keeps less than this in this process: what a run's own machine has is what its
    others must have. None: anything."""
    _LEAST[:] = [] if least is None else [least]


def choose(wanted: str, container: Sequence[str] = ()) -> Isolation:
    """The layer to use.

    Args:
        wanted: `auto` for the strongest available layer, or the name of one. If the strongest is weaker than
            `namespaces`, the guarantees that do not hold and the remedy are logged once.
        container: What starts a container; see `container_command`.

    Raises:
        SandboxError: It cannot be had here; the message says what would bring it.
    """
    if container and wanted in ("auto", Isolation.CONTAINER):
        for word in ("{guest}", "{sockets}"):
            if not any(word in part for part in container):
                raise SandboxError(f"container: nothing in it mounts {word}; write it where the runtime takes mounts")
        if shutil.which(container[0]) is None:
            raise SandboxError(f"container: there is no program {container[0]}")
        return Isolation.CONTAINER
    if wanted == "auto":
        for offer in offers():
            if not offer.missing and offer.isolation is not Isolation.UNSAFE:
                if _LEAST and _keeps_less(offer.isolation, _LEAST[0]):
                    missing = next(o.missing for o in offers() if o.isolation is _LEAST[0])
                    raise SandboxError(
                        f"this machine has isolation {offer.isolation}, and the run's own has {_LEAST[0]} ({missing})"
                    )
                if does_not_hold(offer.isolation):
                    _warn_once(offer.isolation, offers()[0].missing)
                return offer.isolation
        reasons = " · ".join(f"{o.isolation}: {o.missing}" for o in offers() if o.missing and o.remedy)
        raise SandboxError(f"sandbox: no isolation is available ({reasons}); `sandbox: unsafe` runs code without any")
    found = next((offer for offer in offers() if offer.isolation == wanted), None)
    if found is None:
        raise SandboxError(f'no isolation named "{wanted}"; there are: auto, {", ".join(Isolation)}')
    if found.missing:
        raise SandboxError(f"isolation {wanted}: {found.missing}")
    return found.isolation


def _keeps_less(one: Isolation, other: Isolation) -> bool:
    order = [offer.isolation for offer in offers()]
    return order.index(one) > order.index(other)


def does_not_hold(isolation: Isolation) -> str:
    """Return the guarantees of `namespaces` that a layer does not give; empty if it gives all of them."""
    if isolation is Isolation.LANDLOCK:
        same = "" if own_users(isolation) else "; all sessions run as you"
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
        *(isolation, Isolation.NAMESPACES, does_not_hold(isolation), missing),
    )


@functools.cache
def say_what_a_container_lacks(*, seccomp: bool, landlock: bool) -> None:
    """Log, once, what is not kept in inside of it, so that the runtime alone does it."""
    lacks = [] if seccomp else ["system calls are not filtered (its image has no libseccomp.so.2)"]
    lacks += [] if landlock else ["sessions are kept apart by their users alone (its kernel's Landlock is before 6.12)"]
    logging.getLogger("whetstone").warning("whetstone: in the container %s", "; ".join(lacks))


def own_users(isolation: Isolation) -> bool:
    """Whether each session can be a user of its own: only a superuser may become another."""
    if isolation in (Isolation.UNSAFE, Isolation.CONTAINER) or os.getuid() != 0:
        return False
    first, _, count = (int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3])
    if first != 0 or count < _MAPPED_USERS:
        return False
    return isolation is Isolation.NAMESPACES or _closed_to_others() is None


def counted_together(isolation: Isolation) -> int:
    """Processes and threads that count against the limit of a session, and are not its own."""
    if isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or own_users(isolation):
        return 0
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            words = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(words["Uid"].split()[0]) == os.getuid():  # who owns the file is not always who owns the process
                count += int(words.get("Threads", "1"))
    return count


def temporary() -> str:
    """Where temporary files go: a folder nothing of this Python lies in, since it is covered by an empty one."""
    return "/var/tmp" if any(path.startswith("/tmp/") for path in readable()) else "/tmp"


def readable() -> list[str]:
    """What foreign code may read: the system's programs and libraries, and this Python with its packages."""
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


def command(isolation: Isolation, channel: int, control: int) -> list[str]:
    """What starts the fork server; its two sockets are inherited under these numbers."""
    python = [sys.executable, "-I", "-X", "frozen_modules=on", "-c", _START]
    numbers = [str(channel), str(control)]
    if isolation is not Isolation.NAMESPACES:
        places = [str(GUEST.parents[2]), *([os.path.dirname(_filters_module())] if _filters_module() else [])]
        return [*python, os.pathsep.join(places), *numbers]
    return [*_bubblewrap(find_bwrap()), "--", *python, "/sandbox", *numbers]


def container_command(container: Sequence[str], guest: str, sockets: str) -> list[str]:
    """What starts the fork server in a container.

    Args:
        container: The runtime's command up to and with the Python inside; `{guest}` and `{sockets}` in it become
            folders of this machine, to be mounted on `/sandbox` (read-only) and `/run/whetstone`:
            `docker run --rm --network none -v {guest}:/sandbox:ro -v {sockets}:/run/whetstone IMAGE python3`.
        guest: What runs inside.
        sockets: Where the server meets us.
    """
    words = [word.replace("{guest}", guest).replace("{sockets}", sockets) for word in container]
    return [*words, "-I", "-c", _START, "/sandbox", "/run/whetstone"]


def guest_folder() -> str:
    """A folder with all that runs inside, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDERS}-{os.getpid()}-"))
    package = folder / "whetstone"
    shutil.copytree(GUEST, package / "sandbox" / "guest", ignore=shutil.ignore_patterns("__pycache__"))
    for place in (package, package / "sandbox"):
        shutil.copy(GUEST / "__init__.py", place / "__init__.py")
    if filters := _filters_module():
        shutil.copy(filters, folder / "pyseccomp.py")
    folder.chmod(0o755)
    return str(folder)


def environment() -> dict[str, str]:
    """All of the environment foreign code sees."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")}
    return {
        **threads,
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # so that a repeated session is the same session
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{temporary()}/matplotlib",
        "TMPDIR": temporary(),
    }


def find_bwrap() -> str:
    """Return the path of the first `bwrap` that creates namespaces here: the system's, then the wheel's; or ""."""
    return _rehearse_namespaces()[0]


def _bubblewrap(program: str) -> list[str]:
    """Return the command of bubblewrap without the program that runs in it.

    Only read-only binds: below a folder that a session can write, bubblewrap before 0.12 follows a session's symbolic
    links when it creates mount points (CVE-2026-87766).
    """
    assert program  # it was tried before it was chosen
    arguments = [program, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    arguments += ["--unshare-cgroup-try", "--as-pid-1", "--hostname", "sandbox", "--new-session", "--clearenv"]
    if own_users(Isolation.NAMESPACES):
        # the server makes worlds and changes users; what it becomes has none of these
        for name in ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL", "SYS_RESOURCE"):
            arguments += ["--cap-add", f"CAP_{name}"]
    else:
        arguments += ["--unshare-user", "--cap-add", "ALL"]
    for name, value in environment().items():
        arguments += ["--setenv", name, value]
    # before the rest, some of which may lie in them
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]
    # what lies above a bound path would be closed to other users
    above = {str(folder) for path in readable() for folder in Path(path).parents} - {"/", "/tmp", "/var/tmp"}
    for folder in sorted(above):
        arguments += ["--perms", "0755", "--dir", folder]
    for path in readable():
        if os.path.islink(path) and path.count("/") == 1:
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]
    arguments += guest_places()
    # of all sessions, so none may change it, their modes either: an ordinary user is the owner of what is made here
    shared = ["/", "/dev", *(folder for folder in ("/tmp", "/var/tmp") if folder != temporary())]
    arguments += ["--dir", WORK, *(word for folder in shared for word in ("--remount-ro", folder))]
    return [*arguments, "--chdir", "/"]


def guest_places() -> list[str]:
    """What puts all that runs inside on `/sandbox`, in bubblewrap's words."""
    arguments = []
    for folder in ("/sandbox", "/sandbox/whetstone", "/sandbox/whetstone/sandbox"):
        arguments += ["--perms", "0755", "--dir", folder]
    for place in ("", "sandbox/"):  # windows of ours would load what is not there
        arguments += ["--ro-bind", str(GUEST / "__init__.py"), f"/sandbox/whetstone/{place}__init__.py"]
    arguments += ["--ro-bind", str(GUEST), "/sandbox/whetstone/sandbox/guest"]
    if filters := _filters_module():
        arguments += ["--ro-bind", filters, "/sandbox/pyseccomp.py"]
    return arguments


def _filters_module() -> str:
    """Where the module is that makes filters of system calls, which may lie where foreign code may not look."""
    found = importlib.util.find_spec("pyseccomp")
    return found.origin if found is not None and found.origin is not None else ""


def _offer_namespaces() -> Offer:
    program, programs, error = _rehearse_namespaces()
    if program:
        return Offer(Isolation.NAMESPACES)
    needs = not own_users(Isolation.NAMESPACES) if sys.platform.startswith("linux") else True
    diagnosis = bubblewrap.diagnose(bubblewrap.read_facts(programs, error=error, needs_user_namespace=needs))
    return Offer(Isolation.NAMESPACES, f"{diagnosis.cause}; {diagnosis.remedy}", diagnosis.remedy)


@functools.cache
def _rehearse_namespaces() -> tuple[str, bubblewrap.Programs, str]:
    """Try each `bwrap`; return the first that works ("" if none does), those found, and the error of the preferred."""
    if not sys.platform.startswith("linux"):
        return "", bubblewrap.Programs(()), ""
    programs, errors = bubblewrap.find_programs(), []
    arguments = ["/sandbox", WORK, temporary(), "own" if own_users(Isolation.NAMESPACES) else ""]
    for program in programs.paths:
        command = [*_bubblewrap(program), "--", sys.executable, "-I", "-c", _REHEARSE, *arguments]
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
    if kernel.landlock_version() < 6:
        return missing("the kernel's Landlock does not restrict signals", "use Linux 6.12 or newer")
    if os.getuid() == 0 and not own_users(Isolation.LANDLOCK):
        if (closed := _closed_to_others()) is None:
            return missing("the superuser cannot become another user here", "run as an ordinary user")
        return missing(
            f"a superuser's sessions run as other users, which cannot enter {closed}",
            f"use namespaces, or chmod o+x {shlex.quote(closed)}",
        )
    return Offer(Isolation.LANDLOCK)


def _closed_to_others() -> str | None:
    """The first folder on the way to this Python that another user may not pass."""
    for path in map(Path, readable()):
        for folder in (path, *path.parents):
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
    return None


def private_folder() -> str:
    """A folder for a session where it cannot have a file system of its own."""
    return tempfile.mkdtemp(prefix=f"{_FOLDERS}-{os.getpid()}-")


def too_full(folder: str, limits: Limits, process: int = 0) -> bool:
    """Whether there is more in a folder than may be, or it is deeper than anybody needs.

    Args:
        process: The first of those that write to it; what they hold open and have unlinked counts, too. 0 for none.
    """
    size, count = (_unlinked(process) if process else 0), 0
    if size > limits.bounds.folder:
        return True
    try:
        for depth, entry in _below(folder):
            count += 1
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
            if size > limits.bounds.folder or count > limits.files or depth > _MOST_DEPTH:
                return True
    except OSError as error:  # a way too long to name, or what it was looking at is gone
        return error.errno == errno.ENAMETOOLONG
    return False


def _unlinked(process: int) -> int:
    """Bytes on disk of files without a name that a process and its descendants hold open, each counted once."""
    held: dict[tuple[int, int], int] = {}
    for pid in family(process):
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
            for file in files:
                with contextlib.suppress(OSError):
                    state = file.stat()
                    if stat.S_ISREG(state.st_mode) and state.st_nlink == 0:
                        held[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(held.values())


def _below(folder: str) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """All there is in a folder, with how deep it lies; folders above `_MOST_DEPTH` alone are gone into."""
    left = [(1, folder)]
    while left:
        depth, place = left.pop()
        with contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                yield depth, entry
                if entry.is_dir(follow_symlinks=False) and depth <= _MOST_DEPTH:
                    left.append((depth + 1, entry.path))


def remove_folder(folder: str) -> bool:
    """Whether a session's folder is gone, however deep it is and whatever rights foreign code has given in it."""
    try:
        emptying.empty(folder)
        os.rmdir(folder)
    except FileNotFoundError:
        return not os.path.lexists(folder)
    except OSError:
        return False
    return True


def remove_leftover_folders() -> None:
    """Folders of processes that are gone, which could not remove them themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}-*-*"):
        if not Path(f"/proc/{folder.name.split('-')[-2]}").exists():
            remove_folder(str(folder))
