"""Turns are tagged by their kind and rewarded by rules."""

import asyncio

from whetstone.chat import Message, Text, ToolCall, assistant, user
from whetstone.rewards import meta_reasoning, provided_columns
from whetstone.trajectory import Author, CallRecord, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids([], Author.ENVIRONMENT)
TASK = Task("t", "?", {"answer": 7})


def call(arguments="{}", outcome="ok"):
    message = Message("assistant", (Text(""),), (ToolCall("tool", arguments),))
    return Turn(NOTHING, NOTHING, message, calls=(CallRecord("tool", outcome, 0.0),))


def score_turns(*turns, answer="7"):
    all_turns = (*turns, Turn(NOTHING, NOTHING, assistant(answer)))
    return asyncio.run(
        meta_reasoning(
            Trajectory("a", "t", (user("?"),), all_turns, EndReason.TERMINATED), TASK, size=0.5, malformed=0.1
        )
    )


def test_planning_is_rewarded_if_the_episode_succeeds():
    assert score_turns(call()).turns == (0.5, 0)
    assert score_turns(call(), answer="8").turns == (0, 0)
    assert score_turns(call()).signals["tags"] == (0, -1)


def test_exploring_is_rewarded_for_a_new_call():
    result = score_turns(call("1"), call("2"), call("1"))
    assert result.turns == (0.5, 0.5, 0, 0)
    assert result.signals["tags"] == (0, 1, 1, -1)


def test_reflecting_is_rewarded_if_a_failure_is_repaired():
    result = score_turns(call("1", "tool_error"), call("2"))
    assert result.signals["tags"] == (0, 2, -1)
    assert result.turns == (0.5, 0.5, 0)
    repeated = score_turns(call("1", "tool_error"), call("2", "tool_error"))
    assert repeated.turns[1] == 0


def test_malformed_call_is_penalized():
    broken = Turn(NOTHING, NOTHING, Message("assistant", (Text("<call"),), malformed=("<call",)))
    assert score_turns(broken, answer="8").turns[0] == -0.1


def test_provided_columns():
    assert provided_columns(meta_reasoning) == {"process_rewards", "tags"}
