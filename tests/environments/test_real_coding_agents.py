"""Coding agents as installed: each writes two files, and the recorded tokens are those that were sampled."""

import asyncio
import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from support.containers import containers_left, containers_of, needs_podman
from support.sandbox import MISSING
from support.served_policy import build_assembly
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments.coding_agents import _known_agents
from whetstone.environments.external_agent import ExternalAgent
from whetstone.rollout.episode_inputs import EpisodeLimits
from whetstone.rollout.protocol import Action
from whetstone.rollout.runner import run_episode
from whetstone.sandbox import Isolation, Limits
from whetstone.trajectory import Author, EndReason, Task, Tokens

IMAGE = os.environ.get("WHETSTONE_AGENT_IMAGE", "")
"""Podman image in which the agents are installed."""
NO_NAMESPACES = MISSING[Isolation.NAMESPACES]
SHELLS = {
    "claude-code": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "opencode": ("bash", "command"),
    "mini-swe-agent": ("bash", "command"),
}
COMMANDS = ["echo first > one.txt", "cat old.txt > two.txt"]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def installed(name):
    agent = _known_agents()[name]
    missing = shutil.which(agent.command[0]) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"run: {agent.install}"))


@cache
def chat():
    small = "{vocab_size: 2000, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}"
    return build_assembly(f"policy.tiny={small}", "policy.tiny.context_length=400000").chat


class ShellActor:
    """Actor that runs the commands, one per turn, and then ends."""

    def __init__(self, name, commands=COMMANDS):
        self._commands = commands
        (self._tool, self._argument), self.sampled = SHELLS[name], []
        self._last = self._run(SUBMIT) if name == "mini-swe-agent" else assistant("Both are written.")

    def _run(self, command):
        more = {"description": "Run"} if self._tool in ("Bash", "bash") else {}
        return Message("assistant", (), (ToolCall(self._tool, json.dumps({self._argument: command, **more})),))

    async def act(self, moment):
        done = sum(message.role == "assistant" for message in moment.conversation)
        message = self._run(self._commands[done]) if done < len(self._commands) else self._last
        self.sampled.append(tuple(chat().write(message, ())))
        return Action(Tokens.from_ids(self.sampled[-1], Author.EXPERT))

    def leave(self, episode):
        pass


def play(name, actor, **options):
    return asyncio.run(
        run_episode(
            Task("t", "Write one.txt and two.txt"),
            environment=ExternalAgent(program=name, **options),
            actor=actor,
            chat=chat(),
            limits=EpisodeLimits(max_turns=9, context_length=400_000, timeout_seconds=280.0),
            id="e",
            seed=0,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [installed(name) for name in SHELLS])
def test_coding_agent_writes_two_files_and_its_tokens_are_recorded(name, tmp_path):
    (tmp_path / "old.txt").write_text("old\n")
    actor = ShellActor(name)
    episode = play(name, actor, workspace=str(tmp_path))
    assert (episode.ended, episode.error) == (EndReason.TERMINATED, None)
    assert episode.final["files"] == {"one.txt": "first\n", "two.txt": "old\n"}
    assert [turn.action.ids for turn in episode.turns] == actor.sampled
    (segment,) = episode.segments()
    assert sum(segment.action_mask) == sum(map(len, actor.sampled))


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"isolation with namespaces: {NO_NAMESPACES}")
@pytest.mark.parametrize("name", [installed(name) for name in SHELLS if name != "mini-swe-agent"])
def test_coding_agent_works_in_a_sandbox_that_only_reaches_its_model(name, tmp_path):
    program = Path(shutil.which(_known_agents()[name].command[0]))
    roots = [
        parent for each in (program, program.resolve()) for parent in each.parents if parent.name == "node_modules"
    ]
    tmp_path.chmod(0o755)
    actor = ShellActor(name, ["cd; echo first > one.txt", "cd; echo second > two.txt; cat one.txt two.txt"])
    episode = play(
        name,
        actor,
        sandbox=True,
        folder=str(tmp_path),
        readable=[str(root.parent) for root in roots[-1:]],
        limits=Limits(memory_mb=200_000, processes=256),
    )
    assert episode.error is None
    assert (episode.ended, episode.final["exit"]) == (EndReason.TERMINATED, 0)
    assert "first\nsecond" in episode.turns[1].observation[-1].text
    assert [turn.action.ids for turn in episode.turns] == actor.sampled


@needs_podman
@pytest.mark.slow
@pytest.mark.skipif(not IMAGE, reason="set WHETSTONE_AGENT_IMAGE to a podman image in which the agents are installed")
@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode"])
def test_coding_agent_in_a_container_writes_two_files_and_its_tokens_are_recorded(name, tmp_path):
    (tmp_path / "old.txt").write_text("old\n")
    actor, before = ShellActor(name), containers_of(os.getpid())
    episode = play(name, actor, workspace=str(tmp_path), sandbox={"container": "podman", "image": IMAGE})
    assert (episode.ended, episode.error) == (EndReason.TERMINATED, None)
    assert episode.final["files"] == {"one.txt": "first\n", "two.txt": "old\n"}
    assert [turn.action.ids for turn in episode.turns] == actor.sampled
    assert containers_left(os.getpid(), before) == set()
