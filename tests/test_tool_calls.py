"""Statistics of tool calls agree with a manual count, and a tool that never works is named with a remedy."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.chat import assistant
from whetstone.tool_calls import (
    UNKNOWN,
    ToolWatch,
    compute_tool_metrics,
    compute_tool_statistics,
    describe_failing_tools,
    find_cut_results,
    find_failing_tools,
    load_tool_statistics,
    read_calls,
)
from whetstone.trajectory import Author, CallRecord, EndReason, Tokens, Trajectory, Turn
from whetstone.trajectory_json import encode_trajectory, read_trajectory

OF_TOOL = ("tool_failed", "timeout", "unavailable")
OF_MODEL = ("tool_error", "invalid_arguments", "budget_exhausted", "refused_by_policy")
CALLS = st.lists(
    st.builds(
        CallRecord,
        st.sampled_from(["look", "sum", "a/b"]),
        st.sampled_from(["ok", *OF_TOOL, *OF_MODEL, "unknown_tool", "malformed_call", "too_many_calls"]),
        st.floats(0, 10),
        st.booleans(),
        error=st.sampled_from(["", "no order 7", "no order 12", "down"]),
    ),
    max_size=30,
)


def episode(*calls, name="t"):
    nothing = Tokens.from_ids((), Author.ENVIRONMENT)
    turn = Turn(nothing, nothing, assistant("x"), calls=calls, opens_segment=True)
    return Trajectory(name, "task", (), (turn,), EndReason.TERMINATED)


@given(CALLS)
def test_statistics_agree_with_a_manual_count(calls):
    statistics = compute_tool_statistics(calls)
    assert sum(tool.calls for tool in statistics.values()) == sum(
        call.outcome not in ("malformed_call", "too_many_calls") for call in calls
    )
    for name, tool in statistics.items():
        own = [
            call
            for call in calls
            if (call.outcome == "unknown_tool") == (name == UNKNOWN)
            and call.outcome not in ("malformed_call", "too_many_calls")
            and name in (call.name, UNKNOWN)
        ]
        outcomes = Counter(call.outcome for call in own)
        assert tool.calls == len(own)
        assert tool.failed == sum(outcomes[outcome] for outcome in OF_TOOL)
        assert tool.rejected == len(own) - tool.failed - outcomes["ok"]
        assert tool.truncated == sum(call.truncated for call in own)
        assert tool.seconds_max == round(max(call.seconds for call in own), 6)


@given(st.lists(CALLS, min_size=1, max_size=4))
def test_statistics_of_steps_add_up_to_those_of_all_calls(steps):
    rows = [{"step": k, **compute_tool_metrics(compute_tool_statistics(calls))} for k, calls in enumerate(steps)]
    total = compute_tool_statistics([call for calls in steps for call in calls])
    summed = load_tool_statistics(rows, run_dir=_NOWHERE)
    assert summed.keys() == total.keys()
    for name, tool in total.items():
        own = summed[name]
        assert (own.calls, own.failed, own.rejected, own.truncated, own.seconds_max) == (
            tool.calls, tool.failed, tool.rejected, tool.truncated, tool.seconds_max,
        )  # fmt: skip
        assert own.seconds_mean == pytest.approx(tool.seconds_mean, abs=1.5e-6)  # both means are rounded to 1e-6


class _Nowhere:
    """A run without trajectories."""

    def __truediv__(self, name):
        return self

    def glob(self, pattern):
        return []


_NOWHERE = _Nowhere()


def test_errors_that_differ_only_in_numbers_are_one_and_the_most_frequent_is_named():
    calls = [CallRecord("look", "tool_failed", 0.1, error=f"KeyError: '{n}'") for n in range(29)]
    calls += [CallRecord("look", "timeout", 10.0, error="look did not answer within 10 s")] * 2
    assert describe_failing_tools(compute_tool_statistics(calls)) == [
        "look failed in 31 of 31 calls: KeyError: '0'; the arguments may be the cause: raise whetstone.ToolError for "
        "arguments that the model must correct, otherwise repair the tool"
    ]
    assert describe_failing_tools(compute_tool_statistics([*calls, CallRecord("look", "ok", 0.1)])) == []


def test_errors_of_the_model_have_another_message_and_another_remedy():
    wrong = [CallRecord("look", "invalid_arguments", 0.0, error="look: id: Field required")] * 3
    (line,) = describe_failing_tools(compute_tool_statistics(wrong))
    assert line.startswith("look rejected the arguments in 3 of 3 calls: look: id: Field required; the model does not")
    both = [*wrong, *[CallRecord("look", "unavailable", 0.0, error="down")] * 4]
    (line,) = describe_failing_tools(compute_tool_statistics(both))
    assert line.startswith("look failed in 7 of 7 calls (3 of them by arguments of the model): down; start its")
    unknown = [CallRecord("lok", "unknown_tool", 0.0, error='there is no tool "lok"')] * 2
    (line,) = describe_failing_tools(compute_tool_statistics(unknown))
    assert line.startswith('2 of 2 calls named a tool that does not exist: there is no tool "lok"')


@pytest.mark.parametrize(
    ("outcome", "error", "remedy"),
    [
        (
            "tool_failed",
            "shop.py:11 (look): IndexError: list index out of range",
            "the arguments may be the cause: raise",
        ),
        ("tool_failed", "shop.py:11 (look): TypeError: 'NoneType' object", "repair the tool, no call of it succeeds"),
        ("timeout", "look did not answer within 1 s", "increase environment.tool_timeout_seconds if the tool is slow"),
    ],
)
def test_remedy_of_a_failing_tool_depends_on_its_error(outcome, error, remedy):
    (line,) = describe_failing_tools(compute_tool_statistics([CallRecord("look", outcome, 1.0, error=error)] * 5))
    assert line.startswith(f"look failed in 5 of 5 calls: {error}; {remedy}")


def test_the_thread_error_of_sqlite_names_the_option():
    error = "ProgrammingError: SQLite objects created in a thread can only be used in that same thread."
    (line,) = describe_failing_tools(compute_tool_statistics([CallRecord("orders", "tool_failed", 0.0, error=error)]))
    assert "set environment.single_thread: true" in line


def test_a_watch_reports_a_tool_once_after_five_calls_and_never_one_that_worked():
    lines = []
    watch = ToolWatch(lines.append)
    failed, fine = CallRecord("look", "tool_failed", 0.1, error="down"), CallRecord("sum", "ok", 0.1)
    wrong = CallRecord("sum", "tool_failed", 0.1, error="odd")
    watch.record_episode(episode(failed, failed, fine, failed, failed))
    assert lines == []
    for _ in range(20):
        watch.record_episode(episode(failed, wrong))
    assert lines == ["look failed in 5 of 5 calls: down; repair the tool, no call of it succeeds"]
    assert watch.reported == lines


def test_a_watch_waits_longer_for_errors_of_the_model():
    lines = []
    watch = ToolWatch(lines.append)
    wrong = CallRecord("look", "invalid_arguments", 0.0, error="id: Field required")
    for _ in range(49):
        watch.record_episode(episode(wrong, CallRecord("lok", "unknown_tool", 0.0)))
    assert lines == []
    watch.record_episode(episode(wrong))
    assert lines == [line for line in lines if line.startswith("look rejected the arguments in 50 of 50 calls")] != []


def test_step_names_tools_that_mostly_fail_or_whose_results_are_mostly_truncated():
    cut = [CallRecord("search", "ok", 0.1, truncated=k < 3) for k in range(5)]
    down = [CallRecord("look", "unavailable" if k < 5 else "ok", 0.1) for k in range(10)]
    few = [CallRecord("rare", "tool_failed", 0.1)] * 4
    rows = [{"step": 1, **compute_tool_metrics(compute_tool_statistics([*cut, *down, *few]))}, {"step": 2}]
    assert find_failing_tools(rows)[1].startswith("look failed in 5 of 10 calls of the last step")
    assert find_failing_tools(rows)[4:] == ("tools/look/failed_fraction",)
    assert find_cut_results(rows)[1].startswith("3 of 5 results of search were cut in the last step")
    assert find_failing_tools([{"step": 1, **compute_tool_metrics(compute_tool_statistics(few))}]) == ()


def test_error_messages_are_stored_and_old_trajectories_are_read(tmp_path):
    written = episode(CallRecord("look", "tool_failed", 0.5, error="down"), CallRecord("sum", "ok", 0.1))
    row = json.loads(encode_trajectory(written))
    assert read_trajectory(row, {}).calls == written.calls
    assert [len(call) for call in row["turns"][0]["calls"]] == [6, 5]
    old = {**row, "turns": [{**row["turns"][0], "calls": [["look", "timeout", 1.0], ["sum", "ok", 0.1, True]]}]}
    folder = tmp_path / "trajectories"
    folder.mkdir()
    (folder / "step-000001.jsonl").write_text(f"{json.dumps(old)}\nnot json\n{json.dumps(row)}\n")
    assert [(call.name, call.error) for call in read_calls(tmp_path)] == [
        ("look", ""), ("sum", ""), ("look", "down"), ("sum", ""),
    ]  # fmt: skip
