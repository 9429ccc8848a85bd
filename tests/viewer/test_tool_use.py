"""Counts of tool calls."""

from whetstone.viewer.viewer_app import summarize_tools


def test_calls_failures_and_latency_per_tool():
    calls = [
        ("sum", "ok", 1, 0.1, 0, ""),
        ("sum", "ok", 1, 0.3, 1, ""),
        ("sum", "tool_error", 2, 0.2, 0, "no number"),
        ("look", "unknown_tool", 2, 0.0, 0, 'there is no tool "look"'),
    ]
    first, second = summarize_tools(calls)
    assert (first.name, first.calls, first.outcomes) == ("sum", 3, {"ok": 2, "tool_error": 1})
    assert (first.seconds["median"], first.seconds["most"]) == (0.2, 0.3)
    assert (first.steps, first.by_step, first.failed_by_step) == ([1, 2], [2, 1], [0.0, 1.0])
    assert (first.truncated, first.error) == (1, "no number")
    assert second.seconds == {}  # it was not executed


def test_unknown_names_after_the_first_forty_are_one_row():
    calls = [("sum", "ok", 1, 0.1, 0, "")] * 2 + [(f"made up {k}", "unknown_tool", 1, 0.0, 0, "no") for k in range(100)]
    summary = summarize_tools(calls)
    assert len(summary) == 41
    assert (summary[-1].name, summary[-1].calls, summary[-1].named) == ("(others)", 61, False)


def test_malformed_call_has_no_name_and_names_have_no_control_characters():
    unreadable, red = summarize_tools(
        [("", "malformed_call", 1, 0.0, 0, ""), ("\x1b[31mred", "unknown_tool", None, 0.0, 0, "")]
    )
    assert (unreadable.name, unreadable.named, red.name) == ("(unreadable call)", False, "red")
