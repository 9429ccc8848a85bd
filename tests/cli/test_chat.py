"""`whetstone chat`: lines from a pipe, tool calls, and output without control characters."""

import asyncio
import io
import json
import shutil
import sys

import pytest

import crash
from support.cli import whetstone
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.chat import ToolCall, assistant
from whetstone.chat.message import Message, Text
from whetstone.cli.format_message import format_message
from whetstone.errors import PromptTooLong
from whetstone.inference import Generation, Sampling
from whetstone.recipe import load_recipe
from whetstone.record import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.rollout import ChatSession, EpisodeLimits
from whetstone.training import train


class Scripted:
    """An engine that returns scripted answers in the tokens of a chat."""

    def __init__(self, chat, answers):
        self.chat, self.answers, self.prompts = chat, list(answers), []

    async def generate(self, request):
        self.prompts.append(request.prompt.ids)
        tokens = self.chat.write(self.answers.pop(0), [])
        return Generation(tokens, (0.0,) * len(tokens), (0.0,) * len(tokens), (0,) * len(tokens), "stop")

    def forget(self, episode):
        pass


def conversation(*answers, context_length=10_000, max_turns=4):
    assembly = assemble(
        load_recipe("demo", [*SMALL, "ablations=null", "environment.tools=[calculator]", "chat.format=hermes"])
    )
    engine = Scripted(assembly.chat, answers)
    limits = EpisodeLimits(max_turns, context_length, 60.0)
    task = assembly.source.task(0)
    talk = ChatSession(assembly.environment(), engine, assembly.chat, task=task, sampling=Sampling(16), limits=limits,
                        seed=0)  # fmt: skip
    return talk, engine


async def replies(talk, *lines):
    return [[message async for message in talk.say(line)] for line in lines]


def call(expression):
    return Message("assistant", (), (ToolCall("calculator", json.dumps({"expression": expression}), "call_0"),))


def test_line_is_answered_with_tool_results_and_the_next_continues_the_conversation():
    talk, engine = conversation(call("6*7"), assistant("42"), assistant("as I said"))
    first, second = asyncio.run(replies(talk, "Compute 6*7", "And again?"))
    assert [message.role for message in first] == ["assistant", "tool", "assistant"]
    assert "42" in first[1].text
    assert first[2].text == "42"
    assert [message.text for message in second] == ["as I said"]
    one, two, three = engine.prompts
    assert two[: len(one)] == one
    assert three[: len(two)] == two


def test_turn_of_the_user_follows_after_the_maximum_of_calls():
    talk, _ = conversation(*[call("1+1")] * 3, max_turns=3)
    (messages,) = asyncio.run(replies(talk, "Compute 1+1"))
    assert [message.role for message in messages] == ["assistant", "tool"] * 3


def test_full_context_is_an_error():
    talk, _ = conversation(assistant("a long answer " * 20), assistant("more"), context_length=60)
    with pytest.raises(PromptTooLong, match="fills the model's context of 60 tokens"):
        asyncio.run(replies(talk, "Hello", "And?"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a run of one step and return its model."""
    changes = [*SMALL, "ablations=null", "supervised.steps=1", "evaluation.episodes=2", "reinforcement=null"]
    changes += [*crash.TALK, "rollout=null", "objective=null", "advantage=null"]
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(load_recipe("demo", changes), folder, progress=Progress(quiet=True))
    return latest_checkpoint(folder)


@pytest.fixture
def typed(monkeypatch):
    """Provide lines on standard input through a pipe."""

    def lines(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return lines


def test_lines_from_a_pipe_are_answered(trained, typed, tmp_path):
    model = shutil.copytree(trained, tmp_path / "model")  # the model of a run has the environment of the run
    typed(b"Compute 1+1\n\n\xff\xfe half a letter\n")
    done = whetstone("chat", model)
    assert done.returncode == 0, done.stderr
    assert "  assistant " in done.stdout


def test_environment_without_tools_does_not_support_chat(trained, typed):
    typed(b"hello\n")
    refused = whetstone("chat", trained.parents[1])
    assert refused.returncode == 2
    assert "is not a set of tools; a chat requires" in refused.stderr


def test_unknown_model_is_refused_in_one_line(tmp_path, typed):
    for words, line in (
        (["nowhere"], "nowhere: no such model folder"),
        (["demo"], "demo: is a recipe; name a run of it, or a model with --recipe demo"),
    ):
        typed(b"hello\n")
        refused = whetstone("chat", *words)
        assert refused.returncode == 2
        assert line in refused.stderr.splitlines()[-1]


def test_control_characters_of_a_model_are_escaped():
    message = Message("assistant", (Text("\x1b[2Jgone\x07"),), (ToolCall("x\x1b[1m", '{"a": "\x9b1m"}'),))
    assert not any(sign in format_message(message) for sign in "\x1b\x07\x9b")
