import asyncio

from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ToolEnvironment
from whetstone.errors import ToolStop
from whetstone.trajectory import EndReason, Task

TASK = Task("t", "What is 2*3?")


def double(x: int) -> int:
    """Twice x."""
    return 2 * x


def finish() -> str:
    """End it."""
    raise ToolStop("done")


def step(action, **options):
    return asyncio.run(ToolEnvironment(tools=[double, finish], **options).step(action))


def test_episode_starts_with_instruction_prompt_and_tools():
    first = asyncio.run(ToolEnvironment(tools=[double], instruction="Be brief.").reset(TASK, seed=0))
    assert [(m.role, m.text) for m in first.messages] == [("system", "Be brief."), ("user", "What is 2*3?")]
    assert [tool.name for tool in first.tools] == ["double"]


def test_action_without_a_call_is_the_answer():
    result = step(assistant("6"))
    assert (result.ended, result.observation.messages, result.calls) == (EndReason.TERMINATED, (), ())


def test_calls_are_answered_in_order_with_their_ids():
    result = step(assistant("", ToolCall("double", '{"x": 1}', "a"), ToolCall("double", '{"x": 2}', "b")))
    assert [(m.text, m.tool_call_id) for m in result.observation.messages] == [("2", "a"), ("4", "b")]
    assert result.ended is None


def test_excess_calls_are_refused_together():
    result = step(assistant("", *[ToolCall("double", '{"x": 1}')] * 2), max_calls_per_turn=1)
    assert result.observation.messages[0].text == "error: 2 calls in one turn, 1 allowed; none was made"
    assert [call.outcome for call in result.calls] == ["too_many_calls"] * 2
    assert result.ended is None


def test_malformed_call_is_answered_or_ends_the_episode_by_the_recipe():
    action = Message("assistant", malformed=("a <call> was not closed",))
    answered = step(action)
    assert (answered.observation.messages[0].text, answered.ended) == ("error: a <call> was not closed", None)
    assert answered.calls[0].outcome == "malformed_call"
    assert step(action, on_malformed="end").ended is EndReason.MALFORMED_ACTION


def test_a_tool_can_end_the_episode():
    result = step(assistant("", ToolCall("finish", "{}")))
    assert (result.ended, result.observation.messages[0].text) == (EndReason.TOOL_STOPPED, "done")
