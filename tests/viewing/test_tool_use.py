"""What tools did is counted as it was."""

from whetstone.viewing.tool_use import tool_use


def test_calls_failures_and_latency_of_each_tool():
    calls = [
        ("sum", "ok", 1, 0.1, 0, ""),
        ("sum", "ok", 1, 0.3, 1, ""),
        ("sum", "tool_error", 2, 0.2, 0, "no number"),
        ("look", "unknown_tool", 2, 0.0, 0, 'there is no tool "look"'),
    ]
    first, second = tool_use(calls)
    assert (first.name, first.calls, first.outcomes) == ("sum", 3, {"ok": 2, "tool_error": 1})
    assert (first.seconds["median"], first.seconds["most"]) == (0.2, 0.3)
    assert (first.steps, first.by_step, first.failed_by_step) == ([1, 2], [2, 1], [0.0, 1.0])
    assert (first.truncated, first.error) == (1, "no number")
    assert second.seconds == {}  # it never ran


def test_names_a_model_made_up_stand_together_behind_the_first_forty():
    calls = [("sum", "ok", 1, 0.1, 0, "")] * 2 + [(f"made up {k}", "unknown_tool", 1, 0.0, 0, "no") for k in range(100)]
    found = tool_use(calls)
    assert len(found) == 41
    assert (found[-1].name, found[-1].calls, found[-1].named) == ("(others)", 61, False)


def test_a_call_that_could_not_be_read_has_no_name_and_a_name_no_control_characters():
    unreadable, red = tool_use(
        [("", "malformed_call", 1, 0.0, 0, ""), ("\x1b[31mred", "unknown_tool", None, 0.0, 0, "")]
    )
    assert (unreadable.name, unreadable.named, red.name) == ("(unreadable call)", False, "red")
