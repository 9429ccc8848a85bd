"""Grading in a separate sandbox: the files of an episode, none of its processes, and a command without a network."""

import asyncio
import json
import os
import socket
import sys
import tempfile
from functools import partial

import pytest

from support.containers import busybox_image, containers_left, containers_of, needs_podman
from support.sandbox import levels, needs_isolation
from whetstone.chat import ToolCall, assistant
from whetstone.environments.external_agent import ExternalAgent
from whetstone.environments.sandbox_grading import Grade, GradingRun, WorkspaceGrading, build_verdict, grade_or_raise
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.plugins import OptionError
from whetstone.sandbox import Ending, Limits, Outcome
from whetstone.sandbox.archive_transfer import FolderTooLargeError
from whetstone.sandbox.containers.container_archives import load_archive, save_archive
from whetstone.tools import Python, Shell
from whetstone.trajectory import Task

TASK = Task("t", "go", {})


class Grader:
    """Session of a test: the outcome of the command, and reward files by name."""

    scratch_folder = ""

    def __init__(self, outcome, **files):
        self.outcome, self.files, self.commands = outcome, files, []

    async def shell(self, command, **options):
        self.commands.append((command, options.get("wall_seconds")))
        return self.outcome if "test-stdout" in command and "tail" not in command else Outcome(Ending.OK, "end\n")

    async def read(self, path, *, max_bytes):
        text = self.files.get(path.rpartition("/")[2].replace(".", "_"))
        return Outcome(Ending.ERROR) if text is None else Outcome(Ending.OK, data=text.encode())


def grade(outcome, reward="exit_code", **files):
    return asyncio.run(GradingRun("x", reward=reward).run_in(Grader(outcome, **files)))


def ended(code):
    return Outcome(Ending.OK, exit_code=code)


LATE = Outcome(Ending.TIMEOUT, error="it ran longer than 5 s")


def test_exit_code_is_the_reward_and_a_failure_has_a_reason():
    assert grade(ended(0)) == Grade({"reward": 1.0}, "", "end\n")
    for outcome, reason in ((ended(3), "exit code 3 (last line: end)"), (LATE, LATE.error)):
        assert grade(outcome) == Grade({"reward": 0.0}, reason, "end\n")


def test_reward_file_decides_whatever_the_exit_code_is():
    assert grade(ended(1), "file", reward_txt="0.5").reward == 0.5
    assert grade(ended(0), "file", reward_json='{"reward": 2, "style": 1}', reward_txt="0").reward == 2
    for outcome, files in ((ended(0), {}), (ended(0), {"reward_txt": "nan"}), (LATE, {"reward_txt": "1"})):
        assert grade(outcome, "file", **files).reward is None


def test_missing_reward_is_the_failure_of_the_agent_only_if_untouched_files_have_one():
    async def verdict(untouched, key, error=None):
        async def grade_episode():
            if error is not None:
                raise error
            return Grade({}, "none", "")

        async def grade_untouched():
            counts[key] = counts.get(key, 0) + 1
            if isinstance(untouched, Exception):
                raise untouched
            return untouched

        return build_verdict(await grade_or_raise(grade_episode, "place", key, grade_untouched))

    counts, works, lost = {}, Grade({"reward": 0.0}, "", ""), InfrastructureError("tar is missing")
    for _ in range(2):
        failed = asyncio.run(verdict(works, "works"))
        assert failed == {"success": False, "score": 0.0, "no_reward": "none"}
        with pytest.raises(InfrastructureError, match="place: broken, for untouched files either"):
            asyncio.run(verdict(Grade({}, "broken", ""), "fails"))
    assert counts == {"works": 1, "fails": 1}
    # a failed sandbox is tried again at once: an earlier grade does not show that it works now
    failed = asyncio.run(verdict(works, "works", lost))
    assert failed == {"success": False, "score": 0.0, "no_reward": "tar is missing"}
    with pytest.raises(InfrastructureError, match="gone"):
        asyncio.run(verdict(InfrastructureError("gone"), "works", lost))
    assert counts == {"works": 3, "fails": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "grading: set command, or tests: a folder with test.sh"),
        ({"comand": "x"}, 'grading.comand: no such option; did you mean "command"?'),
        ({"command": "x", "seconds": 0}, "grading.seconds: must be above 0, got 0"),
        ({"command": "x", "workspace": "src"}, "grading.workspace: must be an absolute path, got src"),
        ({"command": "x", "reward": "log"}, "grading.reward: input should be 'exit_code' or 'file', got 'log'"),
        ({"tests": "none/here"}, "grading.tests: there is no folder none/here; create it"),
        ({"command": "x"}, "grading.image: is required, because episodes have no sandbox; set a local image"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(OptionError) as raised:
        WorkspaceGrading(options, None)
    assert str(raised.value) == message


def test_folder_of_tests_needs_a_script_or_a_command(tmp_path):
    with pytest.raises(OptionError, match=r"test\.sh is missing; create it, or set grading\.command"):
        WorkspaceGrading({"tests": str(tmp_path)}, None)


def test_grading_without_files_to_grade_is_refused():
    def search(text: str) -> str:
        return text

    for tools, message in (
        ([search], "there are no files to grade; add a tool with files, such as shell"),
        ([partial(Shell, sandbox="unsafe", persistence="reset")], "no files to grade; set `persistence: persistent`"),
    ):
        with pytest.raises(OptionError, match=f"grading: .*{message}"):
            ToolEnvironment(tools=tools, grading={"command": "true"})
    with pytest.raises(RecipeError, match="grading: there are no files to grade; set workspace, or a container"):
        ExternalAgent(command="x", grading={"command": "true"})


def test_grading_in_a_sandbox_with_a_network_is_refused():
    with pytest.raises(RecipeError, match="grading: isolation unsafe does not close the network; set `sandbox: auto`"):
        ToolEnvironment(tools=[partial(Shell, sandbox="unsafe")], grading={"command": "true"})


@needs_isolation
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "a"}, "grading.image: requires a container: `sandbox: {container: podman, image: NAME}`; remove it"),
        ({"workspace": "/tmp/a"}, "grading.workspace: must be in /session of namespaces, got /tmp/a; remove it to"),
        ({"workspace": "/session/../a"}, "grading.workspace: must be in /session of namespaces, got /session/../a;"),
    ],
)
def test_namespaces_have_no_image_and_one_writable_folder(options, message):
    with pytest.raises(OptionError) as raised:
        ToolEnvironment(tools=[Shell], grading={"command": "true", **options})
    assert str(raised.value).startswith(message)


def test_copied_folder_has_files_and_links_of_the_container_and_a_failing_copy_is_no_empty_folder(tmp_path):
    def copy(reading, writing=f"tar -x -p -C {tmp_path}/copied", max_bytes=1 << 20):
        with tempfile.TemporaryFile() as archive:
            save_archive(["sh", "-c", reading], archive, max_bytes=max_bytes)
            load_archive(archive, ["sh", "-c", writing])

    source, target = tmp_path / "source", tmp_path / "copied"
    (source / "a" / ("n" * 120)).mkdir(parents=True)
    target.mkdir()
    (source / "a" / "run.sh").write_bytes(b"x" * (1 << 20))
    (source / "a" / "run.sh").chmod(0o750)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    pack = f"tar -C {source} --owner=1900000000 --group=1900000000 -c ."
    copy(pack)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == [
        "a",
        f"a/{'n' * 120}",
        "a/run.sh",
        "link",
    ]
    assert (target / "a" / "run.sh").read_bytes() == b"x" * (1 << 20)
    assert (target / "a" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.readlink(target / "link") == "/etc/passwd"
    copy(pack, f"tar -t -v --numeric-owner > {tmp_path}/listing")
    assert {line.split()[1] for line in (tmp_path / "listing").read_text().splitlines()} == {"0/0"}
    with pytest.raises(FolderTooLargeError, match="the workspace has more than 0 MiB"):
        copy(pack, max_bytes=(1 << 20) - 1)
    copy("echo 'Error: /x could not be found on container: no such file' >&2; exit 125", "exit 1")
    copy("true", "exit 1")
    copy("head -c 10240 /dev/zero", "exit 1")
    for commands in (
        ("echo 'no such container' >&2; exit 125",),
        (f"{pack} | head -c 9000",),
        ("yes",),
        (pack, "exit 1"),
    ):
        with pytest.raises(InfrastructureError, match="sh cp: "):
            copy(*commands)


# ------------------------------------------------------------ namespaces


def play(grading, *commands, task=TASK, sandbox="auto", **options):
    """Return the last observation and the verdict of an episode with a shell."""

    async def episode():
        shell, observed = partial(Shell, sandbox=sandbox, **options), ""
        environment = ToolEnvironment(tools=[shell], grading=grading, tool_timeout_seconds=60)
        try:
            await environment.reset(task, seed=0)
            for command in commands:
                action = assistant("", ToolCall("shell", json.dumps({"command": command})))
                observed = (await environment.step(action)).observation.messages[0].text
            return observed, await environment.verdict()
        finally:
            await environment.close()

    return asyncio.run(episode())


PATIENT = Limits(wall_seconds=120, cpu_seconds=60)


@needs_isolation
@pytest.mark.parametrize("isolation", levels())
def test_files_of_a_session_are_graded_and_the_episode_never_sees_the_tests(isolation, tmp_path):
    (tmp_path / "test.sh").write_text(
        'test -x run.sh && test "$(readlink link)" = /etc/passwd && test ! -e old && test ! -e pipe && '
        "test -d empty && "
        'test "$(cat "a/b c")" = 42 && test "$(ls "$WHETSTONE_TESTS")" = "more.txt\ntest.sh"\n'
    )
    (tmp_path / "test.sh").chmod(0o755)
    task = Task("t", "go", {"files": {"old": "1"}, "test_files": {"more.txt": "1"}})
    grading = {"tests": str(tmp_path)}
    good = "mkdir a empty; echo 42 > 'a/b c'; rm old; ln -s /etc/passwd link; cp /bin/true run.sh; mkfifo pipe"
    seen = 'find . /tmp -name "test*" -o -name more.txt 2> /dev/null; echo "[$WHETSTONE_TESTS]"'
    options = {"task": task, "sandbox": isolation, "limits": PATIENT}
    observed, verdict = play(grading, good, seen, **options)
    assert observed.splitlines()[-1] == "[]"
    assert verdict == {"success": True, "score": 1.0}
    _, verdict = play(grading, good, "echo 41 > 'a/b c'", **options)
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["failed_grading"].startswith("exit code 1 (last line: ")


@needs_isolation
@pytest.mark.parametrize("isolation", levels())
def test_imitated_tests_and_reward_files_of_the_agent_do_not_count(isolation, tmp_path):
    (tmp_path / "test.sh").write_text('test -e solved; echo "$?" | tr 01 10 > "$WHETSTONE_LOGS/reward.txt"\n')
    (tmp_path / "test.sh").chmod(0o755)
    imitate = (
        'for root in "$PWD" "$PWD/workspace" "$PWD/.." /tmp /var/tmp /dev/shm; do '
        'mkdir -p "$root/tests" "$root/logs/verifier"; '
        'printf "#!/bin/sh\\nexit 0\\n" > "$root/tests/test.sh"; chmod 755 "$root/tests/test.sh"; '
        'echo 1 > "$root/logs/verifier/reward.txt"; echo \'{"reward": 1}\' > "$root/logs/verifier/reward.json"; '
        'chmod 555 "$root/logs/verifier"; done 2> /dev/null; printf "#!/bin/sh\\nexit 0\\n" > test; chmod 755 test; '
        "ln -s /tmp/tests linked; ln -s ../tests parent"
    )
    options = {"sandbox": isolation, "limits": PATIENT}
    for reward in ("file", "exit_code"):
        grading = {"tests": str(tmp_path), "reward": reward}
        if reward == "exit_code":
            grading["command"] = '"$WHETSTONE_TESTS/test.sh"; test -e solved'
        assert play(grading, imitate, **options)[1]["score"] == 0
        assert play(grading, imitate, "touch solved", **options)[1] == {"success": True, "score": 1.0}


@needs_isolation
def test_processes_variables_and_temporary_files_of_the_agent_are_not_in_the_grading_session():
    start = (
        "(setsid sh -c 'while :; do touch /tmp/alive /dev/shm/alive; sleep 1; done' &) ; touch /tmp/alive; "
        "export PATH=/tmp:$PATH; cp /bin/true /tmp/test; alias test=true"
    )
    command = (
        "test ! -e /tmp/alive && test ! -e /dev/shm/alive && test ! -e /tmp/test && "
        "! cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep 'touch /tmp/[a]live'"
    )
    _, verdict = play({"command": command}, start, sandbox="namespaces", limits=PATIENT)
    assert verdict["success"], verdict


@needs_isolation
@pytest.mark.parametrize("isolation", levels())
def test_grading_session_has_no_network(isolation):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = listening.getsockname()
        code = f"import socket\ntry: socket.create_connection({place!r}, 5)\nexcept OSError: print('closed')"
        command = f'test "$(python -c "{code}")" = closed'
        _, verdict = play({"command": command}, "true", sandbox=isolation, limits=PATIENT)
    assert verdict["success"], verdict


@needs_isolation
def test_command_that_takes_too_long_has_the_reward_0():
    _, verdict = play({"command": "echo started; sleep 1000", "seconds": 2}, "true", limits=PATIENT)
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["failed_grading"].startswith("it ran longer than 2 s and was ended")


@needs_isolation
def test_missing_reward_is_compared_with_that_of_the_files_at_the_start_of_the_episode():
    grading = {"command": 'test -e old && echo 1 > "$WHETSTONE_LOGS/reward.txt"', "reward": "file"}
    task = Task("t", "go", {"files": {"old": "1"}})
    assert play(grading, "true", task=task, limits=PATIENT)[1]["success"]
    _, verdict = play(grading, "rm old", task=task, limits=PATIENT)
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["no_reward"].startswith("the tests wrote no reward")
    with pytest.raises(
        InfrastructureError, match=r"grading of t: the tests wrote no reward .*, for untouched files either"
    ):
        play({"command": "exit 3", "reward": "file"}, "true", limits=PATIENT)


@needs_isolation
@pytest.mark.slow
def test_files_of_python_that_replaces_its_own_interpreter_are_graded_or_have_the_reward_0():
    async def episode(code):
        environment = ToolEnvironment(
            tools=[partial(Python, limits=PATIENT)], grading={"command": "test -e a"}, tool_timeout_seconds=60
        )
        try:
            await environment.reset(TASK, seed=0)
            await environment.step(assistant("", ToolCall("python", json.dumps({"code": code}))))
            return await environment.verdict()
        finally:
            await environment.close()

    write = "open('a', 'w').close(); "
    assert asyncio.run(episode(f"{write}import tarfile, os; data = os"))["success"]
    for broken in ("import tarfile; tarfile.open = None", "import os; os.fwalk = lambda *_: iter([('/', [], [], 0)])"):
        verdict = asyncio.run(episode(write + broken))
        assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert asyncio.run(episode(f"{write}import os; os._exit(1)"))["success"]


AGENT = (
    "import json, os, urllib.request as u; "
    "b = json.dumps({'model': 'p', 'messages': [{'role': 'user', 'content': 'a'}]}).encode(); "
    "u.urlopen(u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', b, {'content-type': 'x'})); "
    "open('new.txt', 'w').write('1'); os.symlink('/etc/passwd', 'link')"
)
"""Program of an agent: one request, a new file and a link."""


def play_agent(**options):
    answer = lambda *_: assistant("y")  # noqa: E731
    done = play_with_policy(lambda: ExternalAgent(**options), Task("t", "x", {}), answer, seed=0, max_turns=4)
    return asyncio.run(done).trajectory


@needs_isolation
@pytest.mark.slow
def test_workspace_of_an_agent_in_namespaces_is_graded_in_other_namespaces(tmp_path):
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "run.sh").write_text("exit 0")
    (tmp_path / "run.sh").chmod(0o755)
    agent = {"command": [sys.executable, "-c", AGENT], "workspace": str(tmp_path), "sandbox": True}
    command = "ls -la; test -e new.txt && test -L link && test -x run.sh && test -w old.txt && test $(cat old.txt) = "
    for expected, score in (("old", 1.0), ("new", 0.0)):
        done = play_agent(**agent, grading={"command": f"{command}{expected}"})
        assert done.final["score"] == score, done.final


# ------------------------------------------------------------ podman


def container():
    return {"container": "podman", "image": busybox_image()}


@needs_podman
@pytest.mark.slow
def test_files_of_the_tools_are_graded_without_their_programs_and_processes(tmp_path):
    (tmp_path / "test.sh").write_text(
        "ls /sys/class/net /tests; ps; ls -l; test -z \"$(ps | grep '[s]leep 83')\" && test -x run.sh && "
        'test "$(readlink link)" = /etc/passwd && test ! -e old && test "$(cat a/b)" = 42 && '
        'test "$(ls /sys/class/net)" = lo && test "$(ls /tests)" = \'more.txt\ntest.sh\'\n'
    )
    task = Task("t", "go", {"files": {"old": "1"}, "test_files": {"more.txt": "1"}})
    cheat = "sleep 83 & rm /bin/test; ln -s /bin/true /bin/test"
    good = "mkdir a; echo 42 > a/b; rm old; ln -s /etc/passwd link; touch run.sh; chmod 755 run.sh"
    before = containers_of(os.getpid())
    grading = {"tests": str(tmp_path)}
    observed, verdict = play(grading, cheat, f"{good}; ls /tests", task=task, sandbox=container())
    assert "No such file" in observed
    assert verdict == {"success": True, "score": 1.0}
    _, verdict = play(grading, f"{cheat}; {good}; echo 41 > a/b", task=task, sandbox=container())
    assert (verdict["success"], verdict["score"]) == (False, 0.0)
    assert verdict["failed_grading"].startswith("exit code 1 (last line: ")
    _, verdict = play({"command": "exit 0", "workspace": "/none"}, "true", sandbox=container())
    assert verdict["success"]
    assert containers_left(os.getpid(), before) == set()


@needs_podman
@pytest.mark.slow
def test_container_that_exceeded_its_limit_has_no_files():
    fill = "echo 1 > kept; dd if=/dev/zero of=big bs=1M count=30"
    observed, verdict = play(
        {"command": "test -e kept"}, fill, limits=Limits(folder_mb=20, memory_mb=64), sandbox=container()
    )
    assert "the container and its files are gone" in observed
    assert not verdict["success"]


NAME = "a" * 32
"""Name of a folder; with 150 of them the path is longer than the kernel permits."""


@needs_podman
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        f"i=0; while [ $i -lt 150 ]; do mkdir {NAME}; cd {NAME}; i=$((i+1)); done",
        "mkfifo pipe; ln pipe link",
        "rm -rf /bin",
    ],
    ids=["long path", "link to a pipe", "no programs"],
)
def test_agent_whose_files_cannot_be_taken_out_has_the_reward_0(command):
    _, verdict = play({"command": "test -e solved"}, command, sandbox=container(), limits=PATIENT)
    assert (verdict["success"], verdict["score"]) == (False, 0.0), verdict


@needs_podman
@pytest.mark.slow
def test_workspace_of_an_agent_is_graded_and_replaces_its_own_reward(tmp_path):
    (tmp_path / "old.txt").write_text("old")
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "a"}]})
    post = "wget -q -O - --header 'content-type: application/json' --post-data"
    request = f"{post} '{body}' $OPENAI_BASE_URL/chat/completions"
    write = f"""{request}; {post} '{{"reward": 7}}' $OPENAI_BASE_URL/reward; cat old.txt > new.txt; exit 3"""
    before = containers_of(os.getpid())
    grading = {"command": "echo graded; test $(cat new.txt) = old"}
    agent = {"workspace": str(tmp_path), "sandbox": container(), "grading": grading}
    done = play_agent(command=["sh", "-c", write], **agent)
    assert (done.final["success"], done.final["score"], done.final["exit"]) == (True, 1.0, 3)
    done = play_agent(command=["sh", "-c", f"{request}; rm -r /workspace"], **agent)
    assert (done.final["success"], done.final["score"]) == (False, 0.0)
    assert containers_left(os.getpid(), before) == set()


@needs_podman
@pytest.mark.slow
def test_folder_of_an_agent_on_this_machine_is_graded_in_a_container(tmp_path):
    grading = {"command": "test -e new.txt && test -L link && ! test -e /usr/lib", "image": busybox_image()}
    (tmp_path / "old.txt").write_text("old")
    done = play_agent(command=[sys.executable, "-c", AGENT], workspace=str(tmp_path), grading=grading)
    assert done.final["success"], done.final


@needs_podman
@pytest.mark.slow
def test_test_files_outside_of_their_folder_and_other_values_are_errors_of_the_task():
    for files, message in (({"../a": "x"}, "outside of the folder"), ({"a": 1}, "must be texts by relative path")):
        with pytest.raises(TaskError, match=message):
            play({"command": "true"}, "true", task=Task("t", "go", {"test_files": files}), sandbox=container())
