"""Timeline of a run: steps, and the queueing, generation and tool times of their episodes.

    build_chrome_trace → a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing open

Note:
    A run stores durations, not the start of an episode. Episodes are placed at the start of their step's sampling. This
    is exact if all of them can run at once, and otherwise never too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SPANS = 100_000
"""Maximum number of spans in a trace, which a browser can display."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of one activity in an episode."""

    kind: str
    """`queue`, `engine`, `tool` or `environment`."""
    name: str
    """Name of the tool; empty for other activities."""
    turn: int
    """Index of the turn, from 0."""
    start: float
    """Seconds from the start of the episode."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Start and durations of one training step, for the timeline."""

    stage: str
    """Name of the stage."""
    step: int
    """Number of the step in the stage, from 1."""
    start: float
    """Seconds of training before the step."""
    rollout: float
    """Seconds of sampling."""
    update: float
    """Seconds of the update."""
    engine: float | None
    """Seconds of the sampling time in which the engine was busy."""


def list_steps(rows: Sequence[Mapping[str, Any]]) -> list[StepSpan]:
    """Place the steps of a run one after the other; a step without recorded times has a duration of 0."""
    steps = []
    end = 0.0
    for row in rows:
        rollout, update = _seconds(row, "time/rollout"), _seconds(row, "time/update")
        elapsed = row.get("time/elapsed_seconds")
        start = elapsed - rollout - update if isinstance(elapsed, int | float) else end
        start = max(start, end)  # the sum is rounded, steps do not overlap
        engine = row.get("time/generation")
        steps.append(StepSpan(row["stage"], row["step"], start, rollout, update, engine))
        end = start + rollout + update
    return steps


def episode_spans(row: Mapping[str, Any]) -> list[Span]:
    """Return the time spans of an episode in order; for a fork, only the spans after the fork."""
    spans: list[Span] = []
    now = 0.0

    def add_span(kind: str, seconds: float, turn: int, name: str = "") -> None:
        nonlocal now
        if seconds > 0:
            spans.append(Span(kind, name, turn, now, seconds))
            now += seconds

    shared = int(row.get("fork_turn") or 0) if row.get("parent") else 0
    for number, turn in enumerate(row.get("turns") or ()):
        if number < shared:
            continue
        generation, queue, environment = turn.get("seconds") or (0.0, 0.0, 0.0)
        add_span("queue", queue, number)
        add_span("engine", generation - queue, number)
        for call in turn.get("calls") or ():
            seconds = min(float(call[2]), environment)  # calls of a turn may run in parallel
            add_span("tool", seconds, number, str(call[0]))
            environment -= seconds
        add_span("environment", environment, number)
    return spans


def build_chrome_trace(steps: Sequence[StepSpan], episodes: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Build a trace in the Chrome trace format, for Perfetto and `chrome://tracing`.

    The trace has one process for the learner, and one for the episodes with a lane per episode.

    Args:
        episodes: (step, line) of the episodes in the trace.
    """
    begins = {step.step: step.start for step in steps if step.stage == "reinforcement"}
    events: list[dict[str, Any]] = [_process_name(1, "training"), _process_name(2, "episodes")]
    for each in steps:
        about = {"stage": each.stage, "step": each.step}
        events.append(_event(1, 1, f"rollout {each.step}", "rollout", each.start, each.rollout, about))
        events.append(_event(1, 2, f"update {each.step}", "update", each.start + each.rollout, each.update, about))
    lanes: dict[int, int] = {}
    num_omitted = 0
    for step, row in episodes:
        lanes[step] = lane = lanes.get(step, 0) + 1
        spans = episode_spans(row)
        if len(events) + len(spans) > MAX_SPANS:
            num_omitted += 1
            continue
        for span in spans:
            about = {"episode": row["id"], "turn": span.turn, "step": step}
            start = begins.get(step, 0.0) + span.start
            events.append(_event(2, lane, span.name or span.kind, span.kind, start, span.seconds, about))
    note = "lanes start with the sampling of the step; the start of an episode is not recorded"
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"said": note, "episodes_left_out": num_omitted},
    }


def _event(process: int, lane: int, name: str, kind: str, start: float, seconds: float, about: Any) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 1), "dur": round(seconds * 1e6, 1)}
    return {"name": name, "cat": kind, "ph": "X", "pid": process, "tid": lane, **times, "args": about}


def _process_name(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
