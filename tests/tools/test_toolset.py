import asyncio
import json
import time

import pytest

from whetstone.chat import ToolCall
from whetstone.errors import InfrastructureError, RecipeError, ToolError, ToolStop
from whetstone.tools import Toolset


def double(x: int) -> int:
    """Twice x."""
    return 2 * x


async def triple(x: int) -> dict[str, int]:
    """Thrice x."""
    return {"result": 3 * x}


def broken(how: str) -> str:
    """Fail in some way."""
    if how == "refuse":
        raise ToolError("not like this")
    if how == "stop":
        raise ToolStop("enough")
    if how == "infrastructure":
        raise InfrastructureError("the server is gone")
    if how == "hang":
        time.sleep(3)
    if how == "much":
        return "x" * 1_000_000
    if how == "iteration":
        raise StopIteration("odd")
    if how == "own timeout":
        raise TimeoutError("of its own")
    raise KeyError(how)


async def asleep() -> str:
    """Sleep for a long time."""
    await asyncio.sleep(60)
    return "awake"


def call(name, toolset=None, **arguments):
    toolset = toolset or Toolset([double, triple, broken, asleep], timeout_seconds=1.0, max_result_characters=300)
    return asyncio.run(toolset.call(ToolCall(name, json.dumps(arguments))))


def test_sync_and_async_tools_answer_as_text():
    assert call("double", x=21).text == "42"
    assert call("triple", x=14).text == '{"result": 42}'
    assert call("double", x=21).record.outcome == "ok"


@pytest.mark.parametrize(
    ("how", "outcome", "said"),
    [
        ("refuse", "tool_error", "error: not like this"),
        ("stop", "stopped", "enough"),
        ("hang", "timeout", "error: broken did not answer within 1 s"),
        ("iteration", "tool_error", "error: RuntimeError: StopIteration: odd"),
        ("own timeout", "tool_error", "error: of its own"),
        ("raise", "tool_error", "error: KeyError: 'raise'"),
    ],
)
def test_whatever_a_tool_does_is_answered_and_recorded(how, outcome, said):
    answer = call("broken", how=how)
    assert (answer.text, answer.record.outcome) == (said, outcome)


def test_an_async_tool_that_hangs_is_cut_off():
    assert call("asleep").record.outcome == "timeout"


def test_a_megabyte_keeps_its_head_and_tail():
    answer = call("broken", how="much")
    assert len(answer.text) < 400
    assert "999700 characters left out" in answer.text
    assert answer.record.truncated


def test_a_failure_of_infrastructure_is_not_an_answer():
    with pytest.raises(InfrastructureError, match="the server is gone"):
        call("broken", how="infrastructure")


def test_a_wrong_name_gets_the_nearest_and_a_wrong_argument_its_reason():
    unknown = call("doubel", x=1)
    assert unknown.text == 'error: there is no tool "doubel"; did you mean "double"?'
    assert unknown.record.outcome == "unknown_tool"
    wrong = call("double", x="1")
    assert wrong.record.outcome == "invalid_arguments"
    assert not wrong.record.well_formed


def test_a_hung_tool_does_not_keep_others_from_running():
    async def both():
        toolset = Toolset([broken, double], timeout_seconds=1.0)
        hung = [toolset.call(ToolCall("broken", '{"how": "hang"}')) for _ in range(40)]
        quick = toolset.call(ToolCall("double", '{"x": 1}'))
        return await asyncio.gather(quick, *hung)

    quick, *hung = asyncio.run(both())
    assert quick.text == "2"
    assert {answer.record.outcome for answer in hung} == {"timeout"}


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(RecipeError, match='two tools are named "double"'):
        Toolset([double, double])
