"""Time is laid out as it was measured."""

import pytest

from whetstone.viewing.timeline import spans_of, steps_of, trace


def turn(generation, queue, environment, *calls):
    return {"seconds": [generation, queue, environment], "calls": [[name, "ok", seconds] for name, seconds in calls]}


def test_a_turn_waits_draws_calls_and_is_answered():
    # 0.2 waiting, 0.5 − 0.2 drawing, 0.1 in the tool, 0.3 − 0.1 around it
    spans = spans_of({"turns": [turn(0.5, 0.2, 0.3, ("sum", 0.1))]})
    assert [span.kind for span in spans] == ["queue", "engine", "tool", "environment"]
    assert [span.start for span in spans] == pytest.approx([0.0, 0.2, 0.5, 0.6])
    assert [span.seconds for span in spans] == pytest.approx([0.2, 0.3, 0.1, 0.2])


def test_calls_beside_each_other_take_no_longer_than_their_turn():
    spans = spans_of({"turns": [turn(0.0, 0.0, 0.3, ("a", 0.25), ("b", 0.25))]})
    assert sum(span.seconds for span in spans) == pytest.approx(0.3)


def test_a_fork_begins_behind_what_it_shares():
    row = {"turns": [turn(1, 0, 0), turn(2, 0, 0)], "parent": "p", "fork_turn": 1}
    assert [(span.turn, span.start) for span in spans_of(row)] == [(1, 0.0)]


def test_steps_stand_one_behind_the_other_by_the_time_the_run_kept():
    rows = [
        {"stage": "supervised", "step": 1, "time/update": 1.0, "time/elapsed_seconds": 1.0},
        {"stage": "reinforcement", "step": 1, "time/rollout": 2.0, "time/update": 1.0, "time/elapsed_seconds": 5.0},
        {"stage": "reinforcement", "step": 2},
    ]
    assert [(step.start, step.rollout, step.update) for step in steps_of(rows)] == [(0, 0, 1), (2, 2, 1), (5, 0, 0)]


def test_a_trace_has_what_perfetto_reads():
    steps = steps_of([{"stage": "reinforcement", "step": 1, "time/rollout": 2.0, "time/update": 1.0}])
    made = trace(steps, [(1, {"id": "a", "turns": [turn(0.5, 0.0, 0.0)]}), (1, {"id": "b", "turns": []})])
    complete = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in complete] == [
        ("rollout 1", 0.0, 2e6), ("update 1", 2e6, 1e6), ("engine", 0.0, 5e5),
    ]  # fmt: skip
    assert all({"name", "ph", "pid", "ts", "dur", "tid"} <= event.keys() for event in complete)


def test_a_trace_that_is_too_long_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr("whetstone.viewing.timeline.MOST_SPANS", 3)
    made = trace([], [(1, {"id": str(k), "turns": [turn(1, 0, 0)]}) for k in range(4)])
    assert made["otherData"]["episodes_left_out"] == 3
