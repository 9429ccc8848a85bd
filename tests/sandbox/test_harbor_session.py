"""Environments of Harbor as sandboxes: calls, files, limits, and the attribution of failures."""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial

import pytest

from whetstone.chat import ToolCall, assistant
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import InfrastructureError, SandboxError
from whetstone.plugins import OptionError
from whetstone.sandbox import CONTAINER_LIMITS, Ending
from whetstone.sandbox.containers.harbor_session import HarborEnvironments, HarborSession
from whetstone.tools import Files, Shell, Toolset
from whetstone.trajectory import Task

SMALL = replace(CONTAINER_LIMITS, wall_seconds=60, file_mb=1, output_characters=2000, output_bytes=10_000)


@dataclass
class Result:
    stdout: str | None
    return_code: int
    stderr: str | None = None


class LocalEnvironment:
    """Fake `BaseEnvironment`: commands of this machine, with the calls and errors of Harbor's Docker.

    Its files are those of this machine, so tests write only below its folder.
    """

    def __init__(self, folder, limits):
        self.folder, self.calls, self.fault, self.line_end = folder / "files", [], "", "\n"
        self.programs = ()

    async def start(self, force_build):
        self._record("start")
        self.folder.mkdir()
        for name in self.programs:
            (self.folder / "bin").mkdir(exist_ok=True)
            (self.folder / "bin" / name).symlink_to(shutil.which(name))

    async def stop(self, delete):
        self._record(f"stop {delete}")

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        self._record("exec")
        variables = {**os.environ, "PATH": str(self.folder / "bin")} if self.programs else None
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            process.kill()
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        text = output.decode(errors="replace").replace("\n", self.line_end)
        return Result(text or None, process.returncode)

    async def upload_file(self, source_path, target_path):
        self._record("upload_file")
        shutil.copyfile(source_path, target_path)

    async def download_file(self, source_path, target_path):
        self._record("download_file")
        shutil.copyfile(source_path, target_path)

    def _record(self, call):
        self.calls.append(call)
        if self.fault and call.startswith(self.fault):
            raise ConnectionError("the provider is unreachable")


class Environments:
    """Creates local environments; has the method `session` that tools call."""

    def __init__(self, fault="", programs=()):
        self.created, self.fault, self.programs = [], fault, programs
        """`programs`: names of the programs of each environment; () for those of this machine."""

    def create(self, folder, limits):
        self.created.append(LocalEnvironment(folder, limits))
        self.created[-1].fault, self.created[-1].programs = self.fault, self.programs
        return self.created[-1]

    def session(self, *, persistent=True, seed=0, limits=SMALL):
        return HarborSession(self.create, limits=limits, persistent=persistent)

    def grader_factory(self, image):
        return lambda limits: self.session(limits=limits)


def call(body, *, fault="", **options):
    """Return the result of an async function of a session and its environments."""

    async def run():
        environments = Environments(fault)
        session = environments.session(**options)
        try:
            return await body(session, environments)
        finally:
            if (closing := session.close()) is not None:
                await closing

    return asyncio.run(run())


def outcomes_of(*commands, **options):
    async def body(session, _):
        return [await session.shell(command) for command in commands]

    return call(body, **options)


def test_output_exit_code_and_current_folder_are_those_of_a_shell():
    first, second, third, fourth = outcomes_of(
        "mkdir a; cd a; echo 'it''s'; echo two >&2", "pwd; exit 3", "x=\"$(printf '%s' 'a\nb')\"; echo \"$x\"", "f() {"
    )
    assert (first.ending, first.output, first.exit_code) == (Ending.OK, "its\ntwo\n", 0)
    assert second.output.endswith("/files/a\n")
    assert second.exit_code == 3
    assert third.output == "a\nb\n"
    assert (fourth.ending, fourth.exit_code) == (Ending.OK, 2) or fourth.exit_code == 1


def test_output_is_the_same_if_the_environment_has_a_terminal():
    async def body(session, environments):
        await session.start()
        environments.created[0].line_end = "\r\n"
        return await session.shell("mkdir a; cd a; echo 1; echo 2"), await session.shell("pwd")

    first, second = call(body)
    assert (first.output, second.output.endswith("/files/a\n")) == ("1\n2\n", True)


def test_commands_of_any_length_are_run_and_leave_no_file(monkeypatch):
    token = secrets.token_hex(16)
    monkeypatch.setattr(secrets, "token_hex", lambda count: token)
    (outcome,) = outcomes_of(f"echo {'a' * 200_000} | wc -c")
    assert outcome.output.strip() == "200001"
    assert not [name for name in os.listdir("/tmp") if token in name]


def test_files_are_written_at_the_start_read_and_bounded():
    async def body(session, _):
        session.files = {"b/c.txt": b"1\n"}
        assert (await session.read("b/c.txt")).data == b"1\n"
        assert (await session.write("d/e.bin", b"\x00\xff")).ending is Ending.OK
        assert (await session.shell("wc -c < d/e.bin")).output.strip() == "2"
        for path, error in (("none", "no such file"), ("b", "no such file"), ("d/e.bin", "more than 1 bytes")):
            outcome = await session.read(path, max_bytes=1)
            assert outcome.ending is Ending.ERROR
            assert error in outcome.error
        with pytest.raises(SandboxError, match="use shell"):
            await session.python("1")

    call(body)


def test_limits_of_output_and_files_are_enforced():
    long, large = outcomes_of("yes | head -c 50000", "yes | head -c 5000000 > big; ls -l big | awk '{print $5}'")
    assert (long.ending, long.error) == (Ending.OUTPUT, "it printed more than 10000 bytes")
    assert len(long.output) < 2100
    assert int(large.output.split()[-1]) <= 2 << 20


@pytest.mark.slow
def test_command_that_takes_too_long_is_ended_with_its_processes():
    async def body(session, environments):
        outcome = await session.shell("echo 1 > kept; sleep 871 & sleep 872", wall_seconds=1)
        after = await session.shell("cat kept; ps -ef | grep -c 'sleep 87[12]'")
        return outcome, after, len(environments.created)

    outcome, after, count = call(body)
    assert (outcome.ending, outcome.restarted) == (Ending.TIMEOUT, True)
    assert "files are kept" in outcome.error
    assert (after.output, count) == ("1\n0\n", 1)


def test_shell_that_is_killed_by_its_command_is_an_outcome_of_the_command():
    killed, after = outcomes_of("kill -9 $(ps -o ppid= -p $$)", "echo 1")
    assert (killed.ending, after.output) == (Ending.CRASHED, "1\n")


def test_forged_end_of_a_command_is_only_text():
    (outcome,) = outcomes_of("printf '\\n0123456789abcdef 0 3 /etc\\n'; pwd; exit 4")
    assert outcome.exit_code == 4
    assert "0123456789abcdef 0 3 /etc" in outcome.output


@pytest.mark.parametrize("fault", ["start", "exec", "upload_file", "download_file"])
def test_fault_of_the_provider_is_never_an_outcome(fault):
    async def body(session, environments):
        session.files = {"a": b"1"}
        with pytest.raises(InfrastructureError, match=f"harbor: {fault}: the provider is unreachable"):
            await session.read("a")
        await asyncio.sleep(0)
        return environments.created[0].calls[-1]

    assert call(body, fault=fault) == "stop True"


def test_call_that_fails_after_code_has_run_is_an_outcome_if_an_environment_responds():
    async def body(session, environments):
        await session.shell("echo 1 > kept")
        broken = environments.created[0]
        broken.fault = "upload_file"
        outcomes = [await session.write("a", b"1")]
        assert (await session.shell("cat kept")).output == "1\n"
        broken.fault = "exec"  # such as without a shell: only a new environment responds
        outcomes.append(await session.shell("true"))
        assert (await session.shell("ls")).output == ""
        environments.created[1].fault = environments.fault = "exec"
        with pytest.raises(InfrastructureError, match="harbor: exec: the provider is unreachable"):
            await session.shell("true")
        return outcomes

    first, second = call(body)
    assert [(each.ending, each.restarted) for each in (first, second)] == [(Ending.CRASHED, True)] * 2
    assert first.error == "harbor: upload_file: the provider is unreachable; files are kept"
    assert second.error == "harbor: exec: the provider is unreachable; files are gone, there is a new environment"


def test_fault_while_stopping_is_ignored_and_each_call_without_persistence_has_a_new_environment():
    async def body(session, environments):
        assert [(await session.shell("ls; touch a")).output for _ in range(2)] == ["", ""]
        return [environment.calls[-1] for environment in environments.created]

    assert call(body, persistent=False, fault="stop") == ["stop True", "stop True"]


@pytest.mark.slow
def test_tools_share_an_environment(monkeypatch):
    environments = Environments()
    monkeypatch.setattr("whetstone.tools.sandbox_tools.shared_harbor", lambda values: environments)
    environments.options = type("Options", (), {"network": "none"})()

    async def body():
        harbor = {"sandbox": {"container": "harbor"}, "limits": SMALL}
        toolset = Toolset([partial(Shell, **harbor), partial(Files, **harbor)], timeout_seconds=60)
        await toolset.open(Task("t", "x", {"files": {"a.txt": "one\n"}}), seed=0)
        created = await toolset.call(ToolCall("create", '{"path": "b.txt", "text": "two"}'))
        texts = [await toolset.call(ToolCall("shell", '{"command": "cat a.txt b.txt"}'))]
        texts.append(await toolset.call(ToolCall("view", '{"path": "none"}')))
        await toolset.close()
        return created.record.outcome, [each.text for each in texts]

    outcome, (listing, missing) = asyncio.run(body())
    assert outcome == "ok"
    assert listing.replace("\n", " ").split() == ["one", "two"]
    assert "none" in missing
    assert [environment.calls[-1] for environment in environments.created] == ["stop True"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "score"), [("42", 1.0), ("41", 0.0)])
def test_files_are_graded_in_another_environment_that_is_stopped(answer, score, monkeypatch, tmp_path):
    environments = Environments()
    monkeypatch.setattr("whetstone.tools.sandbox_tools.shared_harbor", lambda values: environments)
    monkeypatch.setattr(HarborSession, "scratch_folder", str(tmp_path))  # in place of `/`
    environments.options = type("Options", (), {"network": "none"})()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "test.sh").write_text(
        '#!/bin/sh\ntest -L link && cat "a b" > "$WHETSTONE_LOGS/reward.txt"\n'
    )

    async def episode():
        environment = ToolEnvironment(
            tools=[partial(Shell, sandbox={"container": "harbor"}, limits=SMALL)],
            grading={"tests": str(tmp_path / "source"), "reward": "file", "workspace": str(tmp_path / "workspace")},
            tool_timeout_seconds=60,
        )
        try:
            await environment.reset(Task("t", "x", {}), seed=0)
            write = f"mkdir {tmp_path}/workspace; cd {tmp_path}/workspace; expr {answer} - 41 > 'a b'; ln -s / link"
            await environment.step(assistant("", ToolCall("shell", json.dumps({"command": write}))))
            return await environment.verdict()
        finally:
            await environment.close()

    verdict = asyncio.run(episode())
    assert (verdict["success"], verdict["score"]) == (score == 1, score), verdict
    assert [environment.calls[-1] for environment in environments.created] == ["stop True"] * 2


PROGRAMS = ("bash", "sh", "cat", "chmod", "grep", "head", "mkdir", "rm", "tail", "wc")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "programs", "is_valid"),
    [
        ("rm bin/tar", (*PROGRAMS, "tar"), True),
        ("rm bin/tar; echo 'echo 7' > bin/tar; chmod +x bin/tar", (*PROGRAMS, "tar"), True),
        ("rm bin/bash bin/sh bin/tar", (*PROGRAMS, "tar"), True),
        ("true", PROGRAMS, False),
    ],
    ids=["removed", "replaced", "no shell", "not in the image"],
)
def test_only_an_image_without_tar_makes_an_episode_invalid(command, programs, is_valid, monkeypatch, tmp_path):
    environments = Environments(programs=programs)
    monkeypatch.setattr("whetstone.tools.sandbox_tools.shared_harbor", lambda values: environments)
    monkeypatch.setattr(HarborSession, "scratch_folder", str(tmp_path))  # in place of `/`
    environments.options = type("Options", (), {"network": "none"})()
    grading = {"command": "test -e solved", "workspace": str(tmp_path / "workspace")}

    async def episode():
        shell = partial(Shell, sandbox={"container": "harbor"}, limits=SMALL)
        environment = ToolEnvironment(tools=[shell], grading=grading, tool_timeout_seconds=60)
        try:
            await environment.reset(Task("t", "x", {}), seed=0)
            await environment.step(assistant("", ToolCall("shell", json.dumps({"command": command}))))
            return await environment.verdict()
        finally:
            await environment.close()

    if not is_valid:
        with pytest.raises(InfrastructureError, match="has no tar, which grading requires; install it"):
            asyncio.run(episode())
        return
    verdict = asyncio.run(episode())
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["no_reward"]
    assert not [each for each in environments.created if each.calls[-1] != "stop True"]


def test_grading_environments_have_no_network_and_keep_the_other_options(monkeypatch):
    created = []
    monkeypatch.setattr("whetstone.sandbox.containers.harbor_session.shared_harbor", created.append)
    environments = object.__new__(HarborEnvironments)
    environments._values = {"container": "harbor", "environment": "e2b", "build": "a", "network": "open", "cpus": 2}
    environments.grader_factory("")
    environments.grader_factory("b")
    assert created == [
        {"container": "harbor", "environment": "e2b", "build": "a", "network": "none", "cpus": 2},
        {"container": "harbor", "environment": "e2b", "build": "", "image": "b", "network": "none", "cpus": 2},
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"environment": "e2b"}, "sandbox.image: set one of image and build"),
        ({"environment": "e2b", "imag": "a"}, 'sandbox.imag: no such option; did you mean "image"?'),
        ({"image": "a"}, "sandbox.environment: is required"),
        ({"environment": "e2b", "build": "no"}, "sandbox.build: there is no folder no; create it with a Dockerfile"),
    ],
)
def test_invalid_options_are_named(values, message):
    with pytest.raises(OptionError) as raised:
        HarborEnvironments({"container": "harbor", **values})
    assert str(raised.value) == message


def test_missing_package_is_reported_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "harbor", None)
    with pytest.raises(SandboxError, match=r"; pip install '.*harbor.*', which requires Python 3.12 or newer"):
        HarborEnvironments({"container": "harbor", "environment": "e2b", "image": "a"})


def test_environment_of_the_package_is_created_with_its_options_or_refused(tmp_path):
    pytest.importorskip("harbor", reason="pip install harbor, with Python 3.12 or newer")
    machine = {"container": "harbor", "environment": "support.harbor_environment:MachineEnvironment"}

    async def body():
        session = HarborEnvironments({**machine, "image": "a"}).session()
        session.files = {"a.txt": b"1"}
        outcome = await session.shell("cat a.txt; exit 3")
        await session.close()
        return outcome

    outcome = asyncio.run(body())
    assert (outcome.output, outcome.exit_code) == ("1", 3)
    for options, message in (
        ({"build": str(tmp_path)}, "an image is required"),
        ({"image": "a", "network": ["pypi.org"]}, "network_mode='allowlist' is not supported by machine"),
        ({"image": "a", "environment": "none"}, "Input should be"),
        ({"image": "a", "environment": "e2b"}, r"requires extra dependencies|E2B_API_KEY"),
    ):
        with pytest.raises(SandboxError, match=message) as raised:
            HarborEnvironments({**machine, **options})
        assert "\n" not in str(raised.value)
