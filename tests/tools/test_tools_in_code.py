"""Code in `python` calls the other tools of the episode: results, records, permissions, limits and ends."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

from support.environments import source_of
from support.sandbox import PATIENT, needs_isolation
from support.tool_episodes import played
from whetstone.chat import Message, ToolCall
from whetstone.environments import ToolEnvironment
from whetstone.environments.built_in.knapsack import Knapsack, best_set
from whetstone.environments.remote.serialization import result_from_wire, result_to_wire
from whetstone.errors import InfrastructureError, ToolError
from whetstone.plugins import OptionError
from whetstone.tools import Files, Python, Shell, Toolset
from whetstone.tools.side_effects import effects
from whetstone.tools.tool_budget import Budget
from whetstone.trajectory import Author, EndReason, Tokens, Trajectory, Turn
from whetstone.trajectory_json import decode_trajectories, decode_turn, encode_trajectory, encode_turn

pytestmark = needs_isolation

INSPECT_AND_PACK = """
from itertools import combinations
capacity, most = (int(w.strip("%, ")) for w in tools.rules().split() if w.strip("%, ").isdigit())
items = {}
for item in range(1, COUNT + 1):
    words = tools.inspect(item).replace(",", "").split()
    items[item] = int(words[1]), int(words[3])
sets = [s for n in range(1, most + 1) for s in combinations(items, n) if sum(items[i][0] for i in s) <= capacity]
print(len(items))
tools.pack(items=list(max(sets, key=lambda s: sum(items[i][1] for i in s))))
print("not reached")
"""


def python(**options):
    return Python(limits=PATIENT, **{"max_tool_calls": 20, **options})


@effects("read")
def double(number: int, times: int = 1) -> int:
    """Double a number.

    Args:
        number: The number.
        times: How often.
    """
    return number * 2**times


@effects("write")
def refund(order: str) -> str:
    """Pay back.

    Args:
        order: The order.
    """
    raise AssertionError("must not be called")


def run(code, *tools, **options):
    """Return the answer of one call of `python` in a toolset with other tools."""
    return played(Toolset([python(**options), *tools]), ("python", {"code": code}))[0]


async def step_of(environment, task, code):
    await environment.reset(task, seed=3)
    result = await environment.step(Message("assistant", (), (ToolCall("python", json.dumps({"code": code}), "a"),)))
    verdict = await environment.verdict()
    await environment.close()
    return result, verdict


def solve_knapsack():
    task = source_of("knapsack", levels=[2]).task(0)
    code = INSPECT_AND_PACK.replace("COUNT", str(len(task.private["items"])))
    return task, *asyncio.run(step_of(ToolEnvironment(tools=[python(), Knapsack]), task, code))


def without_seconds(record):
    inner = tuple(replace(each, record=replace(each.record, seconds=0.0)) for each in record.inner)
    return replace(record, seconds=0.0, inner=inner)


def test_one_call_of_code_inspects_and_packs_a_knapsack():
    """Six things: one `rules`, six `inspect`, one `pack`, which ends code and episode."""
    task, result, verdict = solve_knapsack()
    (record,) = result.calls
    assert [each.record.name for each in record.inner] == ["rules", *["inspect"] * 6, "pack"]
    best = list(best_set(task.private["items"], task.private["capacity"], task.private["most"]))
    assert record.inner[1].arguments == '{"item": 1}'
    weight, value = task.private["items"][0]
    assert record.inner[1].result == f"weight {weight}, value {value}, budget 5"
    assert (verdict["success"], verdict["looked"]) == (True, 6)
    assert len(json.loads(record.inner[-1].arguments)["items"]) == len(best)
    assert (result.reason, record.outcome) == (EndReason.TOOL_STOPPED, "stopped")
    assert "not reached" not in result.observation.messages[0].text


def test_repeated_code_makes_the_same_inner_calls():
    assert list(map(without_seconds, solve_knapsack()[1].calls)) == list(
        map(without_seconds, solve_knapsack()[1].calls)
    )


def test_inner_calls_are_stored_with_turn_trajectory_and_remote_result():
    _, result, _ = solve_knapsack()
    record = replace(result.calls[0], seconds=0.5, inner=result.calls[0].inner[:2])
    record = replace(record, inner=without_seconds(record).inner)
    turn = Turn(
        Tokens.from_ids([1], Author.ENVIRONMENT),
        Tokens.from_ids([2], Author.EXPERT),
        Message("assistant"),
        calls=(record, replace(record, inner=())),
    )
    assert decode_turn(encode_turn(turn)).calls == turn.calls
    trajectory = Trajectory("a", "t", (), (turn,), EndReason.TOOL_STOPPED)
    stored = decode_trajectories([encode_trajectory(trajectory)])[0]
    assert stored.turns[0].calls == turn.calls
    assert [call.name for call in stored.calls] == ["python", "rules", "inspect", "python"]
    assert result_from_wire(result_to_wire(replace(result, calls=(record,)))).calls == (record,)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("int(tools.double(3)) + int(tools.double(1, times=3))", "14"),
        ("tools.double(3, 2)", "'12'"),
        ("[tools.double(number=n) for n in range(3)]", "['0', '2', '4']"),
    ],
)
def test_arguments_and_results_of_inner_calls(code, text):
    assert run(code, double).text == text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("tools.double()", "ToolCallError: double: argument number is missing"),
        ("tools.double('x')", "ToolCallError: double: argument number: input should be a valid integer"),
        ("tools.double(1, 2, 3)", "TypeError: double() takes 2 arguments, got 3"),
        ("tools.double(1, number=2)", "TypeError: double() got two values for number"),
        ("tools.double({1})", "TypeError: Object of type set is not JSON serializable"),
        ("tools.triple(1)", "AttributeError"),
        ("tools.python('1')", "AttributeError"),
        (
            "tools.refund('7')",
            "ToolCallError: not called: refund (write); permit refund with ",
        ),
        ("try:\n    tools.double('x')\nexcept Exception as e:\n    print(type(e).__name__)", "ToolCallError"),
    ],
)
def test_errors_of_inner_calls_are_exceptions(code, message):
    text = run(code, double, refund, Shell(limits=PATIENT), Files(limits=PATIENT)).text
    assert message in text
    assert "interpreter.py" not in text


def test_code_cannot_exceed_the_number_of_calls():
    answer = run("for n in range(5):\n    print(tools.double(n))", double, max_tool_calls=2)
    assert answer.text.startswith("0\n2\n")
    assert "ToolCallError: the code of one call can call tools at most 2 times" in answer.text
    assert len(answer.record.inner) == 2


def test_inner_calls_are_charged_and_refused_by_the_budget():
    """Total 3: the code costs 1 and two calls cost 1 each; the third is refused."""
    answer = run("for n in range(3):\n    tools.double(n)", double, SmallBudget)
    assert [each.record.outcome for each in answer.record.inner] == ["ok", "ok", "budget_exhausted"]
    assert answer.record.cost + sum(each.record.cost for each in answer.record.inner) == 3


class SmallBudget(Budget):
    def __init__(self):
        super().__init__(total=3)


def test_without_the_option_code_has_no_tools():
    assert "NameError" in run("tools.double(1)", double, max_tool_calls=0).text
    with pytest.raises(OptionError, match="max_tool_calls: must be 0 or more, got -1"):
        python(max_tool_calls=-1)


def test_a_new_interpreter_per_call_has_the_tools_too():
    toolset = Toolset([python(persistence="reset"), double])
    answers = played(
        toolset, *[("python", {"code": "x = tools.double(4); x"}), ("python", {"code": "tools.double(5)"})]
    )
    assert [answer.text for answer in answers] == ["'8'", "'10'"]


def test_failing_backend_of_an_inner_call_ends_the_episode():
    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: The key.
        """
        raise InfrastructureError("lookup: no server")

    with pytest.raises(InfrastructureError, match="lookup: no server"):
        run("try:\n    tools.lookup('a')\nexcept BaseException:\n    print(tools.lookup('b'))", lookup)


def test_time_of_a_tool_does_not_count_toward_the_code():
    def wait() -> str:
        """Wait."""
        time.sleep(0.4)
        return "done"

    limits = replace(PATIENT, wall_seconds=0.6)
    toolset = Toolset([Python(limits=limits, max_tool_calls=9), wait])
    answers = played(
        toolset,
        ("python", {"code": "1"}),
        ("python", {"code": "[tools.wait() for _ in range(3)]"}),
        ("python", {"code": "tools.wait()\nwhile True: pass"}),
    )
    assert answers[1].text == "['done', 'done', 'done']"
    assert answers[2].record.outcome == "timeout"


def test_forged_requests_of_code_are_errors_or_end_the_interpreter():
    """Code that finds the channel can send any frame; the host treats it as data."""
    find = "channel = tools.double.func.__self__\nfrom whetstone.sandbox.guest import wire\n"
    send = (
        "channel.host.sendall(wire.frame_message({'number': channel.number, 'tool': TOOL, 'arguments': ARGUMENTS}))\n"
    )
    for tool, arguments in (("['x']", "1"), ("'double'", "[[1]]"), ("'python'", "{'code': '1'}"), ("None", "None")):
        code = (
            find
            + send.replace("TOOL", tool).replace("ARGUMENTS", arguments)
            + "print(wire.receive_frame(channel.host))"
        )
        assert "error" in run(code, double).text
    twice = (
        find
        + 2 * send.replace("TOOL", "'double'").replace("ARGUMENTS", "{'number': 1}")
        + "[wire.receive_frame(channel.host) for _ in range(2)]"
    )
    assert run(twice, double).record.outcome in ("ok", "tool_error")
    forked = "import os\nif os.fork() == 0:\n    try:\n        tools.double(1)\n    finally:\n        os._exit(0)\n"
    forked += "os.wait()\ntools.double(2)"
    assert run(forked, double).text.endswith("'4'")


def test_inner_error_of_a_stateful_tool_is_readable():
    class Box:
        def take(self, item: str) -> str:
            """Take an item.

            Args:
                item: Its name.
            """
            raise ToolError(f"there is no {item}")

    answer = run("tools.take('key')", Box)
    assert answer.text.splitlines()[-1] == "ToolCallError: there is no key"
    assert answer.record.inner[0].record.error == "there is no key"
