"""External agents as environments: the policy is their model, and their conversation an episode."""

import asyncio
import json
import os
import socket
import sys
import time
import urllib.request
from contextlib import suppress
from functools import cache
from pathlib import Path

import openai
import pytest

from support.containers import busybox_image, containers_left, containers_of, needs_podman
from support.external_agents import PARTS
from support.served_policy import TINY
from whetstone.assembly import assemble
from whetstone.chat import assistant, tool_result, user
from whetstone.environments.external_agent import ExternalAgent
from whetstone.errors import EpisodeError, RecipeError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rollout import GroupPlan
from whetstone.rollout.protocol import Action
from whetstone.tools import Toolset
from whetstone.tools.arithmetic_tools import pocket_calculator
from whetstone.training import train
from whetstone.trajectory import Author, EndReason, Task, Tokens
from whetstone.trajectory_json import decode_trajectories, encode_trajectory
from whetstone.user_code import remove_place

OWN = [TINY, "ablations=null", "chat.format=hermes"]
COMMAND = """
import openai, os, sys
client = openai.OpenAI()
told = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], stream=True,
    messages=[{"role": "user", "content": sys.argv[1]}])
print("said:", "".join(piece.choices[0].delta.content or "" for piece in told)[:5].replace("\\n", " "))
sys.exit(int(sys.argv[2]))
"""


@cache
def native():
    return assemble(load_recipe("demo", [*OWN, "environment.max_turns=4"]))


def agent_environment(function=None, reward="exact_number", **more):
    agent = {"name": "agent", **({"function": f"support.external_agents:{function}"} if function else {}), **more}
    return assemble(load_recipe("demo", OWN, environment=agent, reward=reward), native().policy)


def played(assembly, *, expert=True, seed=3, actor=None):
    async def run():
        engine = assembly.build_engine()
        try:
            sampled = assembly.policy_actor(engine, temperature=1.0)
            collector = assembly.build_collector(actor or (assembly.expert_actor() if expert else sampled))
            return await collector.sample(GroupPlan(assembly.source.task(0), seed=seed))
        finally:
            await engine.close()

    return asyncio.run(run())


@pytest.mark.parametrize("agent", ["calculating", "by_responses", "by_messages"])
@pytest.mark.parametrize("expert", [False, True])
def test_episode_of_an_external_agent_has_the_tokens_of_the_native_loop(agent, expert):
    home, away = played(native(), expert=expert), played(agent_environment(agent, max_turns=4), expert=expert)
    assert [turn.action.ids for turn in away.turns] == [turn.action.ids for turn in home.turns]
    assert [turn.context.ids for turn in away.turns] == [turn.context.ids for turn in home.turns]
    if not expert:
        assert [turn.action.logprobs for turn in away.turns] == [turn.action.logprobs for turn in home.turns]
    assert len(away.turns) == (2 if expert else 1)
    assert away.score.value == home.score.value


def test_rewritten_history_starts_a_segment_and_a_posted_reward_is_received():
    episode = played(agent_environment("summing_up"))
    assert [turn.opens_segment for turn in episode.turns] == [True, True]
    assert episode.marks.count("rewritten") == 1
    assert len(episode.segments()) == 2
    assert episode.final["score"] == 0.25
    assert episode.ended is EndReason.TERMINATED


def test_interleaved_agents_extend_their_own_sampled_tokens():
    episode = played(agent_environment("interleaving", max_turns=9))
    assert [turn.agent for turn in episode.turns] == [*PARTS] * 3
    assert [turn.opens_segment for turn in episode.turns] == [True] * 3 + [False] * 6
    segments = episode.segments()
    assert [sorted(set(segment.turns)) for segment in segments] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    prompt, chat = native().source.task(0).prompt, native().chat
    for number, (name, part) in enumerate(PARTS.items()):
        tools = () if name == "writer" else Toolset([pocket_calculator]).specs
        context = chat.open((user(f"{prompt} {part}"),), tools)
        for turn, question in zip(episode.turns[number::3], ("one", "two", "three"), strict=True):
            assert turn.context.ids == tuple(context.new.ids)
            calls = turn.message.tool_calls
            answers = [tool_result(question, call_id=call.id) for call in calls] or [user(question)]
            context = chat.extend(context, turn.action.ids, answers)
        extended = [*context.ids][: len(segments[number])]
        assert list(segments[number].tokens.ids) == extended


class Gate:
    """Actor that answers nothing until this number of requests is in flight, once `after` requests were answered.

    With one request after another, the episode would wait until its deadline. The last of the waiting requests is
    answered first.
    """

    def __init__(self, count, after=0):
        self._count, self._after, self.names, self._events = count, after, [], []

    async def act(self, moment):
        number, opened = len(self.names), asyncio.Event()
        self.names.append(moment.episode)
        if self._after <= number < self._after + self._count:
            self._events.append(opened)
            if len(self._events) == self._count:
                self._opening = asyncio.ensure_future(self._open())
            await opened.wait()
        ids = native().chat.write(assistant(f"answer {number}"), moment.tools)
        return Action(Tokens.from_ids(ids, Author.EXPERT))

    async def _open(self):
        for event in reversed(self._events):
            event.set()
            await asyncio.sleep(0.01)

    def leave(self, episode):
        self.names.remove(episode)


def test_requests_sent_at_once_are_answered_at_once():
    gate = Gate(3)
    episode = played(agent_environment("sending_at_once", max_turns=9), actor=gate)
    assert episode.ended is EndReason.TERMINATED
    answered = [turn.message.text for turn in episode.turns]
    assert answered.index("answer 2") < answered.index("answer 1") < answered.index("answer 0")
    assert sorted(turn.agent for turn in episode.turns) == ["a", "a", "b", "b", "c", "c"]
    # every token once: a segment per conversation, with the tokens of both answers
    sizes = [sum(segment.action_mask) for segment in episode.segments()]
    own = {turn.conversation: 0 for turn in episode.turns}
    for turn in episode.turns:
        own[turn.conversation] += len(turn.action)
    assert sizes == list(own.values())
    read = [episode.opening, *(turn.observation for turn in episode.turns[:-1])]
    for messages, turn in zip(read, episode.turns, strict=True):
        assert reads(turn, messages[-1])
    assert len(gate.names) == 3  # of six requests in three conversations, each conversation was left once


def test_requests_that_extend_the_same_answer_are_branches_with_its_sampled_tokens():
    episode = played(agent_environment("branching", max_turns=9), actor=Gate(2, after=1))
    root, *branches = episode.turns[:3]
    assert episode.ended is EndReason.TERMINATED
    assert sorted(turn.opens_segment for turn in branches) == [False, True]
    chat = native().chat
    for turn in branches:
        (message,) = (message for message in (user("left"), user("right")) if reads(turn, message))
        context = chat.extend(chat.open(episode.opening, ()), root.action.ids, [message])
        assert turn.context.ids == tuple(context.ids if turn.opens_segment else context.new.ids)
    more, short = episode.turns[3:]
    (right,) = (turn for turn in branches if reads(turn, user("right")))
    assert (more.conversation, more.opens_segment) == (right.conversation, False)
    assert short.opens_segment  # a rewritten history
    trained = sum(sum(segment.action_mask) for segment in episode.segments())
    assert trained == sum(len(turn.action) for turn in episode.turns)


def reads(turn, message):
    return message.text in native().chat.tokenizer.decode(turn.context.ids[-60:])


def test_sequential_and_concurrent_requests_of_one_conversation_have_the_same_tokens(monkeypatch):
    concurrent = played(agent_environment("calculating", max_turns=4))
    monkeypatch.setattr("whetstone.rollout.runner.ConcurrentActions", lambda *_: None)  # it then calls `step`
    sequential = played(agent_environment("calculating", max_turns=4))
    assert [turn.action.ids for turn in concurrent.turns] == [turn.action.ids for turn in sequential.turns]
    assert [turn.context.ids for turn in concurrent.turns] == [turn.context.ids for turn in sequential.turns]
    assert [turn.observation for turn in concurrent.turns] == [turn.observation for turn in sequential.turns]


def test_required_tool_choice_is_refused():
    episode = played(agent_environment("requiring"))
    assert remove_place(episode.final["failed"]).startswith("BadRequestError")
    assert "tool_choice: in training, calls are sampled without a constraint" in episode.final["failed"]


def test_conversations_of_an_episode_are_kept_in_records():
    episode = played(agent_environment("interleaving", max_turns=9))
    (back,) = decode_trajectories([encode_trajectory(episode)])
    assert [(turn.conversation, turn.agent) for turn in back.turns] == list(enumerate(PARTS)) * 3
    ids = [[segment.tokens.ids for segment in each.segments()] for each in (back, episode)]
    assert ids[0] == ids[1]


def test_failing_agent_is_an_outcome_or_a_failure_by_the_recipe():
    fallen = played(agent_environment("failing"))
    assert (fallen.ended, remove_place(fallen.final["failed"])) == (EndReason.TERMINATED, "ValueError: the agent's own")
    assert fallen.score is not None
    failed = played(agent_environment("failing", crash="error"))
    assert (failed.ended, failed.score) == (EndReason.ERROR, None)
    assert failed.error.endswith("(failing): ValueError: the agent's own")


def test_agent_without_requests_is_a_failure():
    episode = played(agent_environment("silent"))
    assert (episode.ended, episode.score) == (EndReason.ERROR, None)
    assert "ended without a request to its model" in episode.error


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_command_receives_the_address_and_its_last_output_is_the_answer(tmp_path, code):
    script = tmp_path / "agent.py"
    script.write_text(COMMAND)
    episode = played(agent_environment(command=[sys.executable, str(script), "{task}", str(code)]))
    assert episode.opening[-1].text == native().source.task(0).prompt
    assert episode.final["answer"].startswith("said:")
    assert (episode.final["exit"], "failed" in episode.final) == (code, bool(code))


def test_verdict_of_an_agent_requires_a_posted_or_returned_reward():
    partly = played(agent_environment("summing_up", reward={"name": "verdict", "pays": "score"}))
    assert (partly.score.value, partly.score.success) == (0.25, False)
    fallen = played(agent_environment("failing", reward="verdict"))
    assert (fallen.score.value, remove_place(fallen.final["failed"])) == (0.0, "ValueError: the agent's own")
    unpaid = played(agent_environment("calculating", reward="verdict"))
    assert (unpaid.ended, unpaid.score) == (EndReason.ERROR, None)
    assert (
        "the verdict has no success, only answer; return it in verdict(), or for an agent, return a number"
        in unpaid.error
    )


def test_hanging_agent_ends_at_its_deadline_without_blocking_others():
    began = time.monotonic()
    episode = played(agent_environment("hanging", timeout_seconds=3))
    assert (episode.ended, len(episode.turns), episode.score.value) == (EndReason.TIMEOUT, 1, 0.0)
    assert "not finished after 3 s" in episode.error
    assert time.monotonic() - began < 300  # it sleeps for an hour


@pytest.mark.slow
def test_hanging_command_is_ended_with_its_child_processes(tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        COMMAND.replace("sys.exit", f"import subprocess; subprocess.Popen(['sleep', '{os.getpid()}77'])\nsys.exit")
    )
    episode = played(agent_environment(command=[sys.executable, str(script), "{task}", "0"], timeout_seconds=20))
    assert episode.ended is EndReason.TIMEOUT
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if f"{os.getpid()}77".encode() in command]


def test_agent_requires_either_a_command_or_a_function():
    with pytest.raises(RecipeError, match="one of command, program and function"):
        ExternalAgent()


@pytest.mark.slow
def test_run_trains_an_external_agent(tmp_path):
    agent = {"name": "agent", "function": "support.external_agents:calculating", "max_turns": 4}
    small = ["supervised=null", "reinforcement.steps=2", "reinforcement.tasks_per_step=2", "rollout.group_size=4"]
    recipe = load_recipe(
        "demo", [*OWN, *small, "evaluation.episodes=4", "reward=support.small:parity"], environment=agent
    )
    train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["episode/invalid"] for step in steps] == [0, 0]
    assert all(step["update/tokens"] > 0 for step in steps)


def oversized(task, base_url):
    """Send an endless body and an endless head."""
    port = int(base_url.partition("127.0.0.1:")[2].partition("/")[0])
    path = base_url.partition(str(port))[2]
    results = []
    endless = [f"POST {path}/reward HTTP/1.1\r\nhost: x\r\ncontent-length: {2**40}\r\n\r\n", "GET / HTTP/1.1\r\nx: "]
    for head in endless:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as asking:
            asking.sendall(head.encode())
            sent = 0
            with suppress(OSError):
                while sent < 2**26:
                    asking.sendall(b"a" * 2**16)
                    sent += 2**16
            results.append(sent < 2**26)
    urllib.request.urlopen(
        urllib.request.Request(f"{base_url}/reward", json.dumps({"reward": float(all(results))}).encode())
    )
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])


def test_endless_requests_of_an_agent_are_cut():
    def answer(*_):
        return assistant("y")

    done = asyncio.run(
        play_with_policy(lambda: ExternalAgent(function=oversized), Task("t", "x", {}), answer, seed=0, max_turns=2)
    )
    assert done.trajectory.final["score"] == 1.0


PROGRAM = """
import json, os, pathlib, sys, urllib.request
body = {"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(sys.argv[2] + "/chat/completions", json.dumps(body).encode(), {"content-type": "x"})
urllib.request.urlopen(request)
pathlib.Path("new.txt").write_text("new" + pathlib.Path("old.txt").read_text())
pathlib.Path("kept.txt").write_text("kept")
print(os.environ["HOME"])
"""


def play(**options):
    make = lambda: ExternalAgent(**options)  # noqa: E731
    answer = lambda *_: assistant("y")  # noqa: E731
    return asyncio.run(play_with_policy(make, Task("t", "a {base_url}", {}), answer, seed=0, max_turns=4)).trajectory


def test_workspace_is_copied_and_its_new_files_are_in_the_result(tmp_path):
    (tmp_path / "old.txt").write_text(" of old")
    (tmp_path / "kept.txt").write_text("kept")
    done = play(command=[sys.executable, "-c", PROGRAM, "{task}", "{base_url}"], workspace=str(tmp_path))
    assert done.final["files"] == {"new.txt": "new of old"}
    assert not (tmp_path / "new.txt").exists()
    assert not Path(done.final["answer"]).exists()  # the home of the episode is deleted
    assert done.opening[-1].text == "a {base_url}"  # placeholders in the task are text


def test_command_inherits_no_secrets_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "12345")
    monkeypatch.setenv("GITHUB_TOKEN", "12345")
    monkeypatch.setenv("LC_ALL", "C")
    code = PROGRAM + "\nprint(json.dumps(dict(os.environ)))"
    (tmp_path / "old.txt").write_text("")
    done = play(command=[sys.executable, "-c", code, "{task}", "{base_url}"], workspace=str(tmp_path))
    variables = json.loads(done.final["answer"])
    assert "12345" not in variables.values()
    assert (variables["LC_ALL"], variables["PATH"]) == ("C", os.environ["PATH"])


@needs_podman
@pytest.mark.slow
def test_command_in_a_container_reaches_only_its_model_and_its_files_are_in_the_result(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "12345")
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "kept.txt").write_text("kept")
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "a"}]})
    request = f"wget -q -O answer.json --header 'content-type: application/json' --post-data '{body}'"
    command = (
        f"{request} $OPENAI_BASE_URL/chat/completions; cat old.txt > new.txt; ln -s /etc/passwd link; "
        "ls /sys/class/net > devices.txt; env > variables.txt; pwd"
    )
    before = containers_of(os.getpid())
    done = play(
        command=["sh", "-c", command],
        workspace=str(tmp_path),
        sandbox={"container": "podman", "image": busybox_image()},
    )
    files = done.final["files"]
    assert (done.final["answer"], done.final["exit"]) == ("/workspace", 0)
    assert json.loads(files.pop("answer.json"))["choices"][0]["message"]["content"] == "y"
    assert "12345" not in files.pop("variables.txt")
    assert files == {"new.txt": "old", "devices.txt": "lo\n"}
    assert containers_left(os.getpid(), before) == set()


@needs_podman
@pytest.mark.slow
def test_command_in_a_container_that_fails_has_its_last_line_of_errors():
    sandbox = {"container": "podman", "image": busybox_image()}
    with pytest.raises(EpisodeError, match="ended without a request to its model: exit status 3: broken"):
        play(command=["sh", "-c", "echo broken >&2; exit 3"], sandbox=sandbox)
    with pytest.raises(EpisodeError, match=r"exit status 127: .*none"):
        play(command=["none"], sandbox=sandbox)


def test_container_of_an_agent_is_checked_before_an_episode(tmp_path):
    with pytest.raises(RecipeError, match=r'sandbox.imag: no such option; did you mean "image"'):
        ExternalAgent(command="x", sandbox={"container": "podman", "imag": "a"})
    with pytest.raises(RecipeError, match="workspace requires a command and no folder"):
        ExternalAgent(command="x", folder=str(tmp_path), workspace=str(tmp_path))
    with pytest.raises(RecipeError, match="a container has no folder"):
        ExternalAgent(command="x", sandbox={"container": "podman", "image": "a"}, folder=str(tmp_path))


def test_command_that_waits_for_a_login_ends_with_its_last_output():
    code = "import time; print('Log in at example.org', flush=True); time.sleep(60)"
    with pytest.raises(
        EpisodeError, match=r"no request to its model in 2 s; its last output: Log in at example.org; if"
    ):
        play(command=[sys.executable, "-c", code], start_seconds=2)


def test_coding_agent_that_is_unknown_or_missing_is_reported_with_its_installation(tmp_path):
    with pytest.raises(RecipeError, match='there is no "claude"; did you mean "claude-code"'):
        ExternalAgent(program="claude")
    with pytest.raises(RecipeError, match="there is no codex on the PATH; run: npm install -g @openai/codex"):
        ExternalAgent(program="codex", variables={"PATH": str(tmp_path)})
    with pytest.raises(RecipeError, match="set one of command, program and function"):
        ExternalAgent(program="codex", command="x")
    with pytest.raises(RecipeError, match="workspace: there is no folder"):
        ExternalAgent(command="x", workspace=str(tmp_path / "none"))
