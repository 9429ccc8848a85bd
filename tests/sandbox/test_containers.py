"""A container per session: limits, isolation, files, snapshots, and removal after any end of the process."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from support.containers import busybox_image, containers_of, needs_podman, write_rootfs
from whetstone.chat import ToolCall
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.plugins import OptionError
from whetstone.sandbox import ContainerOptions, ContainerPool, Ending
from whetstone.sandbox.archive_transfer import upload_host_folder
from whetstone.sandbox.containers.container_options import CONTAINER_LIMITS, parse_container_options
from whetstone.sandbox.containers.container_runtime import (
    ContainerRuntime,
    has_owner_ended,
    parse_docker_facts,
    parse_podman_facts,
    process_owner,
    remove_leftover_containers,
)
from whetstone.tools import Files, Shell, Toolset
from whetstone.trajectory import Task

SMALL = replace(
    CONTAINER_LIMITS, wall_seconds=20, cpu_seconds=5, memory_mb=64, processes=30, folder_mb=20, file_mb=16,
    output_bytes=100_000,
)  # fmt: skip


def in_container(body, *, limits=SMALL, sessions=1, **options):
    """Return the result of an async function of open sessions."""

    async def call():
        pool = ContainerPool(ContainerOptions(container="podman", **(options or {"image": busybox_image()})))
        try:
            return await body(*(pool.session(limits=limits) for _ in range(sessions)))
        finally:
            pool.close()

    return asyncio.run(call())


def outcomes_of(*commands, limits=SMALL):
    async def body(session):
        return [await session.shell(command) for command in commands]

    return in_container(body, limits=limits)


# ------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"container": "lxc", "image": "a"}, "sandbox.container: input should be 'podman' or 'docker', got 'lxc'"),
        ({"container": "podman", "imag": "a"}, 'sandbox.imag: no such option; did you mean "image"?'),
        ({"image": "a"}, "sandbox.container: is required"),
    ],
)
def test_invalid_options_are_named(values, message):
    with pytest.raises(OptionError) as raised:
        parse_container_options(values)
    assert str(raised.value) == message


def test_exactly_one_source_of_the_image_is_required():
    with pytest.raises(SandboxError, match="set one of image, build and rootfs; got none"):
        ContainerOptions(container="podman")
    with pytest.raises(SandboxError, match="got image and build"):
        ContainerOptions(container="podman", image="a", build="b")


def test_missing_runtime_is_reported_with_the_command_that_installs_it(monkeypatch, tmp_path):
    from whetstone.sandbox.containers import container_runtime as runtime

    runtime.probe_runtime.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        with pytest.raises(SandboxError, match=r"^podman: not installed; apt-get install podman runc$"):
            ContainerPool(ContainerOptions(container="podman", image="a"))
    finally:
        runtime.probe_runtime.cache_clear()


@needs_podman
def test_missing_image_and_other_architecture_are_refused_before_an_episode():
    with pytest.raises(SandboxError, match="podman has no image localhost/none; images are not pulled"):
        ContainerPool(ContainerOptions(container="podman", image="localhost/none"))
    with pytest.raises(SandboxError, match="is for s390x, this machine is"):
        ContainerPool(ContainerOptions(container="podman", image=busybox_image("s390x")))


@needs_podman
def test_failing_build_and_missing_root_file_system_are_one_line(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM localhost/none\nRUN true\n")
    for options, message in (
        ({"build": str(tmp_path)}, "cannot be built"),
        ({"build": str(tmp_path / "none")}, "has no Containerfile and no Dockerfile"),
        ({"rootfs": str(tmp_path / "none")}, "no folder or archive"),
    ):
        with pytest.raises(SandboxError, match=message) as raised:
            ContainerPool(ContainerOptions(container="podman", **options)).prepare_image()
        assert "\n" not in str(raised.value)


def podman_info(runtime="crun", version="v1", controllers=("memory", "pids", "cpu")):
    return {
        "host": {
            "arch": "amd64", "cgroupVersion": version, "cgroupControllers": list(controllers),
            "ociRuntime": {"name": runtime}, "security": {"rootless": False},
        },
        "version": {"Version": "4.3.1"},
    }  # fmt: skip


def test_crun_is_replaced_by_runc_on_control_groups_of_version_1(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert parse_podman_facts(podman_info()).options == ("--runtime", "runc")
    assert parse_podman_facts(podman_info(version="v2")).options == ()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "apt-get install runc" in parse_podman_facts(podman_info()).problem


def test_limits_that_cannot_be_enforced_are_found():
    assert parse_podman_facts(podman_info("runc", controllers=["cpu"])).missing_limits == ("memory", "pids")
    info = {"Architecture": "x86_64", "ServerVersion": "27", "MemoryLimit": True, "CpuCfsQuota": True}
    facts = parse_docker_facts(info)
    assert (facts.missing_limits, facts.architecture) == (("pids",), "amd64")


def test_owner_of_a_container_is_a_process_and_its_start():
    boot, namespace, process, start = process_owner().split("/")
    assert has_owner_ended(process_owner()) is False
    assert has_owner_ended(f"{boot}/{namespace}/{process}/{int(start) + 1}") is True
    assert has_owner_ended(f"{boot}/{namespace}/99999999/1") is True
    assert has_owner_ended(f"other/{namespace}/1/1") is None


# ------------------------------------------------------------ calls


@needs_podman
@pytest.mark.slow
def test_files_the_folder_and_background_processes_last_from_call_to_call():
    async def body(session):
        session.files["a/b.txt"] = b"hello\n"
        commands = [
            "cat a/b.txt; pwd",
            "mkdir /w; cd /w; sleep 77 & exit 3",
            "pwd; ps | grep -c '[s]leep 77'",
            "echo 'a",
        ]
        outcomes = [await session.shell(command) for command in commands]
        await session.write("x/y", b"\0\xff")
        return outcomes, (await session.read("x/y")).data, (await session.read("none")).ending

    (first, second, third, fourth), data, missing = in_container(body)
    assert (first.output, first.exit_code) == ("hello\n/srv\n", 0)
    assert (second.ending, second.exit_code) == (Ending.OK, 3)
    assert third.output == "/w\n1\n"
    assert fourth.exit_code == 2
    assert (data, missing) == (b"\0\xff", Ending.ERROR)


@needs_podman
@pytest.mark.slow
def test_sessions_do_not_share_files_or_processes():
    async def body(one, other):
        await one.shell("echo secret > /tmp/s; sleep 78 &")
        return await other.shell("cat /tmp/s; ps | grep -c '[s]leep 78'")

    outcome = in_container(body, sessions=2)
    assert "secret" not in outcome.output
    assert outcome.output.endswith("0\n")


@needs_podman
@pytest.mark.slow
def test_each_call_has_a_new_container_without_persistence():
    async def call():
        pool = ContainerPool(ContainerOptions(container="podman", image=busybox_image()))
        session = pool.session(persistent=False, limits=SMALL)
        await session.shell("touch /t")
        outcome = await session.shell("ls /t")
        pool.close()
        return outcome

    assert asyncio.run(call()).exit_code == 1


@needs_podman
@pytest.mark.slow
def test_calls_that_exceed_a_limit_end_and_the_next_call_works():
    slow = replace(SMALL, wall_seconds=2)
    cases = {
        Ending.TIMEOUT: "echo a; touch /kept; sleep 100",
        Ending.OUTPUT: "yes",
        Ending.MEMORY: "a=x; while :; do a=$a$a; done",
        Ending.DISK: "for i in 1 2; do dd if=/dev/zero of=/big$i bs=1M count=15; done",
    }

    async def body(session):
        seen = {}
        for ending, command in cases.items():
            outcome = await session.shell(command)
            seen[ending] = outcome.ending, (await session.shell("echo ok; ls /kept")).output
        return seen

    seen = in_container(body, limits=slow)
    assert {ending: got for ending, (got, _) in seen.items()} == {ending: ending for ending in cases}
    assert all(output.startswith("ok") for _, output in seen.values())
    assert "/kept" in seen[Ending.MEMORY][1]
    assert "No such file" in seen[Ending.DISK][1]


@needs_podman
@pytest.mark.slow
def test_processor_time_of_a_process_is_limited():
    (outcome,) = outcomes_of("while :; do :; done", limits=replace(SMALL, cpu_seconds=1))
    assert outcome.ending is Ending.CPU


@needs_podman
@pytest.mark.slow
def test_fork_bomb_ends_with_its_time_and_leaves_no_process():
    bomb = "f(){ f|f& f; }; f"
    outcomes = outcomes_of(bomb, "ps | wc -l", limits=replace(SMALL, wall_seconds=4))
    assert outcomes[0].ending in (Ending.TIMEOUT, Ending.OK, Ending.CRASHED)
    assert int(outcomes_of("ps | wc -l")[0].output) < 10


@needs_podman
@pytest.mark.slow
def test_container_that_its_code_stopped_is_the_outcome_of_the_code():
    async def body(session):
        await session.shell("true")
        await asyncio.to_thread(subprocess.run, ["podman", "kill", session.name], check=True, capture_output=True)
        return await session.shell("true"), await session.shell("echo new")

    lost, new = in_container(body)
    assert (lost.ending, lost.restarted) == (Ending.CRASHED, True)
    assert new.output == "new\n"


@needs_podman
def test_runtime_that_fails_is_a_fault_of_the_infrastructure(monkeypatch):
    async def body(session):
        monkeypatch.setattr(ContainerRuntime, "build_command", lambda self, *arguments: ["false", *arguments])
        with pytest.raises(InfrastructureError, match=r"no image|podman run"):
            await session.shell("true")

    in_container(body)


# ------------------------------------------------------------ isolation


@needs_podman
@pytest.mark.slow
def test_container_has_no_network_no_privileges_and_no_variables_of_the_machine(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_MACHINE", "12345")
    monkeypatch.setenv("https_proxy", "http://12345")
    commands = {
        "ls /sys/class/net": "lo\n",
        "env | grep -c 12345": "0\n",
        "grep -c 'NoNewPrivs:.1' /proc/self/status": "1\n",
        "grep Seccomp: /proc/self/status | tr -d '\\t'": "Seccomp:2\n",
        "mknod /tmp/d b 8 0 2>/dev/null || echo refused": "refused\n",
        "mount -t tmpfs none /tmp 2>/dev/null || echo refused": "refused\n",
        "chroot / true 2>/dev/null || echo refused": "refused\n",
        "(echo 1 > /proc/sysrq-trigger) 2>/dev/null || echo refused": "refused\n",
        "hostname": "sandbox\n",
        "kill -9 1; echo alive": "alive\n",
    }
    outcomes = outcomes_of(*commands)
    assert {command: outcome.output for command, outcome in zip(commands, outcomes, strict=True)} == commands


@needs_podman
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="without root, the runtime maps users itself")
def test_root_of_a_container_is_an_ordinary_user_of_the_machine():
    async def body(session):
        await session.shell("sleep 79 &")
        words = ["pgrep", "-f", "^sleep 79$"]
        processes = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
        return [os.stat(f"/proc/{process}").st_uid for process in processes.stdout.split()]

    assert in_container(body) == [1_900_000_000]


# ------------------------------------------------------------ files


@needs_podman
@pytest.mark.slow
def test_snapshot_restores_files_owners_and_deletions_without_processes():
    async def body(session):
        await session.shell("echo 1 > /srv/a; chown 33 /srv/a; rm /bin/vi; sleep 80 &")
        snapshot = await session.snapshot()
        await session.shell("rm /srv/a; touch /srv/later")
        await session.restore(snapshot)
        return await session.shell("ls -ln /srv | tr -s ' ' | cut -d' ' -f3,9; ls /bin/vi; ps | grep -c '[s]leep 80'")

    output = in_container(body).output
    assert "33 a\n" in output
    assert "later" not in output
    assert "/bin/vi: No such file" in output
    assert output.endswith("0\n")


@needs_podman
@pytest.mark.slow
def test_folder_is_uploaded_in_place_of_another(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new").write_text("x")

    async def body(session):
        await session.shell("mkdir /tests; touch /tests/old; ln -s /etc /link")
        await upload_host_folder(session, tmp_path, "/tests")
        await upload_host_folder(session, tmp_path, "/link")
        return await session.shell("cd /tests; find .; ls /etc/sub; ls -ld /link | cut -c1")

    output = in_container(body).output
    assert "./sub/new" in output
    assert "old" not in output
    assert "/etc/sub: No such file" in output
    assert output.endswith("d\n")


@needs_podman
@pytest.mark.slow
def test_image_is_made_from_a_folder_and_from_instructions(tmp_path):
    root = write_rootfs(tmp_path / "root")

    async def where(session):
        return (await session.shell("cat /made; ls /bin/busybox")).output

    assert in_container(where, rootfs=str(root)).endswith("/bin/busybox\n")
    build = tmp_path / "build"
    build.mkdir()
    (build / "Containerfile").write_text(f"FROM {busybox_image()}\nRUN echo built > /made\n")
    assert in_container(where, build=str(build)) == "built\n/bin/busybox\n"


@needs_podman
@pytest.mark.slow
def test_user_and_working_directory_of_the_image_are_writable_as_in_the_image(tmp_path):
    async def body(session):
        return (await session.shell("id -u; pwd; echo a > /made/x && cat /made/x")).output

    (tmp_path / "Containerfile").write_text(f"FROM {busybox_image()}\nWORKDIR /made\n")
    assert in_container(body, build=str(tmp_path)) == "0\n/made\na\n"
    (tmp_path / "Containerfile").write_text(
        f"FROM {busybox_image()}\nRUN mkdir /made && chown 1000 /made\nWORKDIR /made\nUSER 1000\n"
    )
    assert in_container(body, build=str(tmp_path)) == "1000\n/made\na\n"


@needs_podman
@pytest.mark.slow
def test_tools_share_a_container():
    async def call():
        box = {"container": "podman", "image": busybox_image()}
        tools = Toolset([functools.partial(Files, sandbox=box), functools.partial(Shell, sandbox=box)])
        await tools.open(Task("a", "b", {"files": {"f": "one\n"}}), seed=0)
        try:
            seen = [await tools.call(ToolCall("shell", '{"command": "cat f; exit 3"}'))]
            return [*seen, await tools.call(ToolCall("view", '{"path": "f"}'))]
        finally:
            await tools.close()

    ran, viewed = asyncio.run(call())
    assert ran.content[0].text == "one\n\n[exit code 3]" or ran.content[0].text == "one\n[exit code 3]"
    assert viewed.content[0].text == "error: the container has no python3, which this tool requires"


# ------------------------------------------------------------ nothing remains

_HOLDS = """
import asyncio, sys
from whetstone.sandbox import ContainerOptions, ContainerPool
async def main():
    session = ContainerPool(ContainerOptions(container="podman", image=sys.argv[1])).session()
    await session.shell("sleep 1000 &")
    await session.snapshot()
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def start_holder():
    process = subprocess.Popen([sys.executable, "-c", _HOLDS, busybox_image()], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert len(containers_of(process.pid)) == 2
    return process


@needs_podman
@pytest.mark.slow
def test_no_container_remains_after_the_process_was_killed():
    process = start_holder()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while containers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert containers_of(process.pid) == []


@needs_podman
@pytest.mark.slow
def test_next_start_removes_containers_of_a_process_whose_guard_was_killed_too():
    process = start_holder()
    children = subprocess.run(["pgrep", "-P", str(process.pid), "sh"], capture_output=True, text=True, check=True)
    for child in children.stdout.split():
        os.kill(int(child), signal.SIGKILL)
    process.kill()
    process.wait()
    assert len(containers_of(process.pid)) == 2
    assert remove_leftover_containers(ContainerRuntime("podman")) >= 2
    assert containers_of(process.pid) == []
