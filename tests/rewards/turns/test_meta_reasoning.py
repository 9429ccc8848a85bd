"""Turns are tagged by what they do, and paid by rule."""

import asyncio

from whetstone.chat import Message, Text, ToolCall, assistant, user
from whetstone.rewards import meta_reasoning, provided_by
from whetstone.trajectory import Author, CallRecord, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.written([], Author.ENVIRONMENT)
TASK = Task("t", "?", {"answer": 7})


def call(arguments="{}", outcome="ok"):
    message = Message("assistant", (Text(""),), (ToolCall("tool", arguments),))
    return Turn(NOTHING, NOTHING, message, calls=(CallRecord("tool", outcome, 0.0),))


def said(*turns, answer="7"):
    made = (*turns, Turn(NOTHING, NOTHING, assistant(answer)))
    return asyncio.run(
        meta_reasoning(Trajectory("a", "t", (user("?"),), made, EndReason.TERMINATED), TASK, size=0.5, malformed=0.1)
    )


def test_planning_pays_where_the_episode_succeeds():
    assert said(call()).turns == (0.5, 0)
    assert said(call(), answer="8").turns == (0, 0)
    assert said(call()).signals["tags"] == (0, -1)


def test_exploring_pays_for_a_call_not_made_before():
    found = said(call("1"), call("2"), call("1"))
    assert found.turns == (0.5, 0.5, 0, 0)
    assert found.signals["tags"] == (0, 1, 1, -1)


def test_reflecting_pays_where_a_failure_is_mended():
    found = said(call("1", "tool_error"), call("2"))
    assert found.signals["tags"] == (0, 2, -1)
    assert found.turns == (0.5, 0.5, 0)
    again = said(call("1", "tool_error"), call("2", "tool_error"))
    assert again.turns[1] == 0


def test_what_cannot_be_read_costs():
    broken = Turn(NOTHING, NOTHING, Message("assistant", (Text("<call"),), malformed=("<call",)))
    assert said(broken, answer="8").turns[0] == -0.1


def test_it_says_what_it_provides():
    assert provided_by(meta_reasoning) == {"process_rewards", "tags"}
