import asyncio

import pytest

from whetstone.chat import ToolCall, assistant
from whetstone.rewards import exact_number, final_answer
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids((), Author.ENVIRONMENT)


def ended(reason, *messages):
    turns = tuple(Turn(NOTHING, NOTHING, message) for message in messages)
    return Trajectory("t", "task", (), turns, reason)


@pytest.mark.parametrize(
    ("trajectory", "answer"),
    [
        (ended(EndReason.TERMINATED, assistant("so 408")), "so 408"),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("submit", '{"answer": "408"}'))), "408"),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("finish", "{}"))), None),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("submit", "nonsense"))), None),
        (ended(EndReason.MAX_TURNS, assistant("408")), None),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("submit", '{"a": 408, "b": 1}'))), "408"),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("submit", "[408]"))), None),
        (ended(EndReason.TOOL_STOPPED, assistant("", ToolCall("submit", "{}"))), None),
        (
            ended(
                EndReason.TOOL_STOPPED,
                assistant(
                    "", ToolCall("note", '{"x": 1}'), ToolCall("submit", "{"), ToolCall("submit", '{"a": "408"}')
                ),
            ),
            "408",
        ),
        (
            ended(
                EndReason.TOOL_STOPPED,
                assistant("", ToolCall("submit", '{"a": "1"}')),
                assistant("", ToolCall("x", "{}")),
            ),
            None,
        ),
        (ended(EndReason.TOOL_STOPPED), None),
    ],
)
def test_final_answer_of_an_episode(trajectory, answer):
    assert final_answer(trajectory) == answer
    score = asyncio.run(exact_number(trajectory, Task("task", "?", {"answer": 408})))
    assert score.value == float(answer is not None)
