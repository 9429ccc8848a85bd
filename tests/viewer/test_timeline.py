"""The timeline shows the measured durations."""

import pytest

from whetstone.viewer.timeline import build_chrome_trace, episode_spans, list_steps


def turn(generation, queue, environment, *calls):
    return {"seconds": [generation, queue, environment], "calls": [[name, "ok", seconds] for name, seconds in calls]}


def test_turn_has_spans_for_queue_generation_tools_and_environment():
    # 0.2 in the queue, 0.5 − 0.2 generating, 0.1 in the tool, 0.3 − 0.1 around it
    spans = episode_spans({"turns": [turn(0.5, 0.2, 0.3, ("sum", 0.1))]})
    assert [span.kind for span in spans] == ["queue", "engine", "tool", "environment"]
    assert [span.start for span in spans] == pytest.approx([0.0, 0.2, 0.5, 0.6])
    assert [span.seconds for span in spans] == pytest.approx([0.2, 0.3, 0.1, 0.2])


def test_parallel_calls_take_no_longer_than_their_turn():
    spans = episode_spans({"turns": [turn(0.0, 0.0, 0.3, ("a", 0.25), ("b", 0.25))]})
    assert sum(span.seconds for span in spans) == pytest.approx(0.3)


def test_fork_starts_after_its_shared_turns():
    row = {"turns": [turn(1, 0, 0), turn(2, 0, 0)], "parent": "p", "fork_turn": 1}
    assert [(span.turn, span.start) for span in episode_spans(row)] == [(1, 0.0)]


def test_steps_are_placed_by_their_recorded_time():
    rows = [
        {"stage": "supervised", "step": 1, "time/update": 1.0, "time/elapsed_seconds": 1.0},
        {"stage": "reinforcement", "step": 1, "time/rollout": 2.0, "time/update": 1.0, "time/elapsed_seconds": 5.0},
        {"stage": "reinforcement", "step": 2},
    ]
    assert [(step.start, step.rollout, step.update) for step in list_steps(rows)] == [(0, 0, 1), (2, 2, 1), (5, 0, 0)]


def test_trace_has_the_fields_of_perfetto():
    steps = list_steps([{"stage": "reinforcement", "step": 1, "time/rollout": 2.0, "time/update": 1.0}])
    trace = build_chrome_trace(steps, [(1, {"id": "a", "turns": [turn(0.5, 0.0, 0.0)]}), (1, {"id": "b", "turns": []})])
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in complete] == [
        ("rollout 1", 0.0, 2e6), ("update 1", 2e6, 1e6), ("engine", 0.0, 5e5),
    ]  # fmt: skip
    assert all({"name", "ph", "pid", "ts", "dur", "tid"} <= event.keys() for event in complete)


def test_truncated_trace_reports_the_omitted_steps(monkeypatch):
    monkeypatch.setattr("whetstone.viewer.timeline.MAX_SPANS", 3)
    trace = build_chrome_trace([], [(1, {"id": str(k), "turns": [turn(1, 0, 0)]}) for k in range(4)])
    assert trace["otherData"]["episodes_left_out"] == 3
