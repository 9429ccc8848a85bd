"""An agent command in a sandbox: it reaches its model, and nothing else."""

import asyncio
import json
import os
import socket
import sys

import pytest

from support.sandbox import MISSING
from whetstone.chat import assistant
from whetstone.environments.external_agent import ExternalAgent
from whetstone.errors import RecipeError, SandboxError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.sandbox import Isolation, Limits
from whetstone.trajectory import EndReason, Task

NO_NAMESPACES = MISSING[Isolation.NAMESPACES]
confined = pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"isolation with namespaces: {NO_NAMESPACES}")
ASK = """
import json, os, urllib.request
def ask(text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    said = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "x"}))
    return json.load(said)["choices"][0]["message"]["content"]
"""
LOOK = """
import os, socket, sys
def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
print(ask("begin"))
print(json.dumps({
    "machine": tried(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2)),
    "world": tried(lambda: socket.create_connection(("1.1.1.1", 80), 2)),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
    "canary": tried(lambda: open(sys.argv[2])),
    "beside": tried(lambda: open(sys.argv[3] + "/new", "w")),
    "home": tried(lambda: open(os.environ["HOME"] + "/new", "w")),
    "user": os.getuid(),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
}))
"""


def episode(folder, code, *arguments, reply="yes", task="t", **options):
    """Run a script in a folder with these arguments and return its trajectory."""
    folder.mkdir(exist_ok=True)
    (folder / "agent.py").write_text(ASK + code)
    command = [sys.executable, "agent.py", *map(str, arguments)]
    make = lambda: ExternalAgent(command=command, folder=str(folder), sandbox=True, **options)  # noqa: E731
    return asyncio.run(
        play_with_policy(make, Task("t", task, {}), lambda *_: assistant(reply), seed=0, max_turns=4)
    ).trajectory


@confined
@pytest.mark.slow
def test_agent_reaches_only_its_model(tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        done = episode(tmp_path / "own", LOOK, port, canary, tmp_path / "own")
    assert [message.text for message in done.opening] == ["begin"]
    assert (done.ended, done.final["exit"]) == (EndReason.TERMINATED, 0)
    access = json.loads(done.final["answer"])
    assert access["machine"] == "ConnectionRefusedError"
    assert access["world"] == access["beside"] == "OSError"
    assert (access["unix"], access["canary"], access["home"]) == ("OSError", "FileNotFoundError", "done")
    assert access["processes"] <= 3


@confined
@pytest.mark.slow
def test_task_and_failure_of_the_agent_are_passed_through(tmp_path):
    done = episode(tmp_path / "own", 'import sys; ask(sys.argv[1]); sys.exit("no more")', "{task}", task="it's $HOME")
    assert [message.text for message in done.opening] == ["it's $HOME"]
    assert (done.final["exit"], done.final["failed"]) == (1, "exit status 1: no more")


@confined
@pytest.mark.slow
def test_concurrent_agents_receive_answers_to_their_own_requests(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "agent.py").write_text(ASK + "import sys; print(ask(sys.argv[1]) + ask(sys.argv[1]))")

    async def one(number):
        make = lambda: ExternalAgent(command=[sys.executable, "agent.py", "{task}"], folder=str(own), sandbox=True)  # noqa: E731
        answer = lambda conversation, *_: assistant(f"<{conversation[-1].text}>")  # noqa: E731
        return (await play_with_policy(make, Task(str(number), f"t{number}", {}), answer, seed=0)).trajectory.final[
            "answer"
        ]

    async def many():
        return await asyncio.gather(*map(one, range(24)))

    assert asyncio.run(many()) == [f"<t{number}><t{number}>" for number in range(24)]


@confined
@pytest.mark.slow
def test_memory_limit_of_the_agent_is_enforced(tmp_path):
    code = 'ask("a"); print(len(bytearray(1 << 30)))'
    assert "MemoryError" in episode(tmp_path / "own", code, limits=Limits(memory_mb=256)).final["failed"]


WRITE = """
import json, os, pathlib
ask("a")
pathlib.Path("new.txt").write_text(pathlib.Path("old.txt").read_text() + str(os.getuid() == 0))
pathlib.Path("sub/kept.txt").unlink()
os.symlink("/etc/hostname", "link")
os.chmod(".", 0o500)
listing = sorted(os.listdir("/workspace"))
print(json.dumps([os.getcwd(), os.environ["PWD"], os.path.exists(os.environ["ORIGINAL"]), listing]))
"""


def workspace_episode(workspace, code, **options):
    """Run a script with a copy of a workspace in namespaces, and return its trajectory."""
    command = [sys.executable, "-c", ASK + code]
    options = {"workspace": str(workspace), "variables": {"ORIGINAL": str(workspace)}, **options}
    make = lambda: ExternalAgent(command=command, sandbox=True, **options)  # noqa: E731
    return asyncio.run(play_with_policy(make, Task("t", "a", {}), lambda *_: assistant("y"), seed=0)).trajectory


@confined
@pytest.mark.slow
def test_workspace_is_writable_in_namespaces_and_its_original_is_not_visible(tmp_path):
    workspace = tmp_path / "own"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "old.txt").write_text("old ")
    (workspace / "sub" / "kept.txt").write_text("1")
    workspace.chmod(0o700)
    done = workspace_episode(workspace, WRITE)
    assert done.final["files"] == {"new.txt": "old False"}
    listing = ["link", "new.txt", "old.txt", "sub"]
    assert json.loads(done.final["answer"]) == ["/workspace", "/workspace", False, listing]
    assert (workspace / "sub" / "kept.txt").exists()


@confined
@pytest.mark.slow
def test_workspace_that_exceeds_its_limits_ends_the_agent_or_is_refused(tmp_path):
    small = Limits(folder_mb=2, file_mb=1, memory_mb=2048, processes=128)
    fill = 'ask("a")\nimport time\nfor i in range(9): open(f"f{i}", "wb").write(b"x" * 900000)\ntime.sleep(600)'
    done = workspace_episode(tmp_path, fill, limits=small)
    assert done.final["files"] == {}
    assert "its files were more than 2 MiB" in done.final["failed"]
    (tmp_path / "large").write_bytes(b"x" * (3 << 20))
    with pytest.raises(RecipeError, match=r"has more than 2 MiB or 4096 files; set `limits: \{folder_mb"):
        workspace_episode(tmp_path, fill, limits=small)


@confined
def test_folder_without_permissions_for_others_is_refused(tmp_path):
    if os.getuid() != 0:
        pytest.skip("the program is another user for a superuser alone")
    (tmp_path / "own").mkdir(mode=0o700)
    with pytest.raises(SandboxError, match="cannot read"):
        episode(tmp_path / "own", "")


def test_functions_cannot_be_sandboxed_and_limits_require_a_sandbox():
    with pytest.raises(RecipeError, match="a function runs in this process and cannot be sandboxed"):
        ExternalAgent(function=print, sandbox=True)
    with pytest.raises(RecipeError, match="readable requires `sandbox: true`"):
        ExternalAgent(command="x", readable=["/opt"])
