import asyncio
import contextlib
import json
import threading
import time

import pytest

from whetstone.chat import Text, ToolCall, assistant
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import InfrastructureError, RecipeError, ToolError, ToolStop
from whetstone.tools import Toolset
from whetstone.tools.protocol import Result
from whetstone.trajectory import Task


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
    raise KeyError(how)


async def asleep() -> str:
    """Sleep for a long time."""
    await asyncio.sleep(60)
    return "awake"


def call(name, toolset=None, **arguments):
    patience = 0.2 if name == "asleep" else 1.0 if arguments.get("how") == "hang" else 600.0
    toolset = toolset or Toolset([double, triple, broken, asleep], timeout_seconds=patience, max_result_characters=300)
    return asyncio.run(toolset.call(ToolCall(name, json.dumps(arguments))))


def test_results_of_sync_and_async_tools_are_text():
    assert call("double", x=21).text == "42"
    assert call("triple", x=14).text == '{"result": 42}'
    assert call("double", x=21).record.outcome == "ok"


@pytest.mark.parametrize(
    ("how", "outcome", "message"),
    [
        ("refuse", "tool_error", "error: not like this"),
        ("stop", "stopped", "enough"),
        ("hang", "timeout", "error: broken did not answer within 1 s"),
        ("iteration", "tool_failed", "error: RuntimeError: StopIteration: odd"),
        ("raise", "tool_failed", "error: KeyError: 'raise'"),
    ],
)
def test_any_behavior_of_a_tool_is_answered_and_recorded(how, outcome, message):
    answer = call("broken", how=how)
    assert (answer.text, answer.record.outcome) == (message, outcome)


def test_async_tool_that_hangs_is_cancelled():
    assert call("asleep").record.outcome == "timeout"


def test_megabyte_keeps_its_head_and_tail():
    answer = call("broken", how="much")
    assert len(answer.text) < 400
    assert "999700 characters left out" in answer.text
    assert answer.record.truncated


def test_infrastructure_failure_is_a_value_and_ends_the_episode():
    answer = call("broken", how="infrastructure")
    assert isinstance(answer.failure, InfrastructureError)
    assert (answer.text, answer.record.outcome) == ("error: the server is gone", "unavailable")

    async def played():
        environment = ToolEnvironment(tools=[broken])
        await environment.reset(Task("t", "?"), seed=0)
        await environment.step(assistant("", ToolCall("broken", '{"how": "infrastructure"}')))

    with pytest.raises(InfrastructureError, match="the server is gone"):
        asyncio.run(played())


def test_wrong_name_gets_the_nearest_and_a_wrong_argument_its_reason():
    unknown = call("doubel", x=1)
    assert unknown.text == 'error: there is no tool "doubel"; did you mean "double"?'
    assert unknown.record.outcome == "unknown_tool"
    wrong = call("double", x="1")
    assert wrong.record.outcome == "invalid_arguments"
    assert not wrong.record.well_formed


def test_hung_tool_does_not_block_others():
    released = threading.Event()

    def wait() -> int:
        """Waits until it is released."""
        released.wait()
        return 1

    async def both():
        toolset = Toolset([wait, double], timeout_seconds=600.0)
        hung = [asyncio.create_task(toolset.call(ToolCall("wait", "{}"))) for _ in range(40)]
        await asyncio.sleep(0)  # all have started
        quick = await toolset.call(ToolCall("double", '{"x": 1}'))
        waiting = [not task.done() for task in hung]
        released.set()
        return quick, waiting, await asyncio.gather(*hung)

    try:
        quick, waiting, hung = asyncio.run(both())
    finally:
        released.set()
    assert quick.text == "2"
    assert all(waiting)
    assert {answer.text for answer in hung} == {"1"}


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(RecipeError, match='two tools are named "double"'):
        Toolset([double, double])


class Unspeakable(Exception):
    """An object whose representation raises."""

    def __str__(self):
        raise SystemExit("no words")


class Recursive:
    def __str__(self):
        return str(self)


def deep():
    inner = []
    for _ in range(100_000):
        inner = [inner]
    return inner


def itself():
    ring = []
    ring.append(ring)
    return ring


RAISED = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt("mine"),
    "exit of a generator": GeneratorExit("mine"),
    "cancelled": asyncio.CancelledError("mine"),
    "no text": Unspeakable(),
    "a group": ExceptionGroup("both", [ValueError("first"), KeyError("second")]),
    "a group of the base": BaseExceptionGroup("both", [SystemExit(4), KeyError("second")]),
    "recursion": RecursionError("deep"),
    "memory": MemoryError(),
    "endless text": ValueError("x" * 10**6),
    "one that ends loops": StopAsyncIteration("odd"),
}
RETURNED = {
    "ambiguous object": object,
    "a deep list": deep,
    "a ring": itself,
    "an iterator without end": lambda: iter(int, 1),
    "an object within": lambda: {"a": [object()]},
    "a number without end": lambda: 10**5000,
    "a text that calls itself": Recursive,
    "a result of anything": lambda: Result((5,)),
    "a text that is a number": lambda: Result((Text(5),)),
    "a result that is none": lambda: Result(None),
}


def raising(kind: str) -> str:
    """Raise something."""
    raise RAISED[kind]


async def raising_later(kind: str) -> str:
    """Raise something, in a coroutine."""
    raise RAISED[kind]


def returning(kind: str) -> object:
    """Return something."""
    return RETURNED[kind]()


async def cancelling() -> str:
    """Cancel the very task it runs in."""
    asyncio.current_task().cancel()
    await asyncio.sleep(0)
    return "never"


async def deaf() -> str:
    """Hear nothing of being cut off, for a while."""
    for _ in range(40):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
    return "late"


@pytest.mark.parametrize("tool", [raising, raising_later], ids=["plain", "async"])
@pytest.mark.parametrize("kind", list(RAISED))
def test_exception_of_any_kind_is_a_failure_of_the_tool(tool, kind):
    answer = call(tool.__name__, Toolset([tool], timeout_seconds=600.0), kind=kind)
    assert (answer.record.outcome, answer.failure) == ("tool_failed", None)
    assert answer.text.startswith("error: ")
    assert len(answer.text) < 1100


@pytest.mark.parametrize("kind", list(RETURNED))
def test_unprintable_result_is_a_failure_of_the_tool(kind):
    answer = call("returning", Toolset([returning], timeout_seconds=600.0), kind=kind)
    assert (answer.record.outcome, answer.failure) == ("tool_failed", None)


def test_tool_that_cancels_its_task_affects_nothing_else():
    answer = call("cancelling", Toolset([cancelling]))
    assert (answer.record.outcome, answer.text) == ("tool_failed", "error: CancelledError: ")


def test_coroutine_that_does_not_stop_is_abandoned():
    async def cut_off():
        toolset = Toolset([deaf], timeout_seconds=0.1)
        answer = await asyncio.wait_for(toolset.call(ToolCall("deaf", "{}")), 20)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        while any(not task.done() for task in left):  # the event loop of the test must end
            for task in left:
                task.cancel()
            await asyncio.sleep(0)
        return answer

    assert asyncio.run(cut_off()).record.outcome == "timeout"


def test_cancellation_from_outside_reaches_the_tool():
    cancelled = []

    async def waiting() -> str:
        """Wait."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("stopped")
            raise
        return "never"

    async def stopped():
        calling = asyncio.create_task(Toolset([waiting]).call(ToolCall("waiting", "{}")))
        await asyncio.sleep(0.05)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    asyncio.run(stopped())
    assert cancelled == ["stopped"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (5, "{}"),
        (None, "{}"),
        (["double"], "{}"),
        ("double", 5),
        ("double", None),
        ("double", {"x": 1}),
        ("double", b"{"),
    ],
)
def test_call_that_is_no_text_is_refused(name, arguments):
    answer = asyncio.run(Toolset([double]).call(ToolCall(name, arguments)))
    assert answer.record.outcome in ("invalid_arguments", "unknown_tool")
    assert isinstance(answer.record.name, str)


def test_names_and_refusals_are_truncated():
    toolset = Toolset([double], max_result_characters=300)
    unknown = asyncio.run(toolset.call(ToolCall("n" * 10**6, "{}")))
    wrong = asyncio.run(toolset.call(ToolCall("double", json.dumps({f"k{i}" * 50: i for i in range(1000)}))))
    assert max(len(unknown.text), len(unknown.record.name), len(wrong.text)) < 400


class Dear:
    """An object whose price raises."""

    def charge(self, name):
        raise SystemExit("no money")


def test_helpers_of_a_tool_cannot_raise():
    answer = call("double", Toolset([double, Dear()]), x=1)
    assert (answer.record.outcome, answer.text) == ("tool_failed", "error: SystemExit: no money")


class JudgeWithoutMapping:
    """A tool object whose verdict is a number."""

    def tools(self):
        return [double]

    def verdict(self):
        return 0.5


def test_verdict_of_another_type_names_the_tool_and_the_remedy():
    async def judge():
        toolset = Toolset([JudgeWithoutMapping])
        await toolset.open(Task("a", "?"), seed=0)
        try:
            return await toolset.verdict()
        finally:
            await toolset.close()

    with pytest.raises(
        TypeError, match=r"JudgeWithoutMapping\.verdict\(\) returned 0\.5, not a mapping such as {'succ"
    ):
        asyncio.run(judge())
