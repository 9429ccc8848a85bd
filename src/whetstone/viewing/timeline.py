"""Where did the time go? Steps, and in them episodes: waiting, drawing, tools.

    write_trace → a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing open

Easy to get wrong: a run keeps how long everything took, not when an episode began. Episodes are laid out from the
beginning of their step's sampling, which is when they began where all of them may be under way at once, and never too
late otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_SPANS = 100_000
"""Of a trace; a browser opens so many without trouble."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time, in an episode."""

    kind: str
    """`queue`, `engine`, `tool` or `environment`."""
    name: str
    """Of the tool."""
    turn: int
    start: float
    """Seconds from the episode's beginning."""
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step of training."""

    stage: str
    step: int
    start: float
    """Seconds of training in front of it."""
    rollout: float
    update: float
    engine: float | None
    """Of the sampling time, in which the engine was busy."""


def steps_of(rows: Sequence[Mapping[str, Any]]) -> list[StepSpan]:
    """The steps of a run one behind the other; a step that says nothing of its time has none."""
    found = []
    end = 0.0
    for row in rows:
        rollout, update = _seconds(row, "time/rollout"), _seconds(row, "time/update")
        elapsed = row.get("time/elapsed_seconds")
        start = elapsed - rollout - update if isinstance(elapsed, int | float) else end
        start = max(start, end)  # the sum is rounded, steps do not overlap
        engine = row.get("time/generation")
        found.append(StepSpan(row["stage"], row["step"], start, rollout, update, engine))
        end = start + rollout + update
    return found


def spans_of(row: Mapping[str, Any]) -> list[Span]:
    """What an episode did, one behind the other; of a fork what it did behind the fork."""
    found: list[Span] = []
    at = 0.0

    def took(kind: str, seconds: float, turn: int, name: str = "") -> None:
        nonlocal at
        if seconds > 0:
            found.append(Span(kind, name, turn, at, seconds))
            at += seconds

    shared = int(row.get("fork_turn") or 0) if row.get("parent") else 0
    for number, turn in enumerate(row.get("turns") or ()):
        if number < shared:
            continue
        generation, queue, environment = turn.get("seconds") or (0.0, 0.0, 0.0)
        took("queue", queue, number)
        took("engine", generation - queue, number)
        for call in turn.get("calls") or ():
            seconds = min(float(call[2]), environment)  # calls of a turn may run beside each other
            took("tool", seconds, number, str(call[0]))
            environment -= seconds
        took("environment", environment, number)
    return found


def trace(steps: Sequence[StepSpan], episodes: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Chrome's trace format: a process of the learner, one of the episodes with a lane each.

    Args:
        episodes: (step, line), of the steps that are to be in it.
    """
    begins = {step.step: step.start for step in steps if step.stage == "reinforcement"}
    events: list[dict[str, Any]] = [_named(1, "training"), _named(2, "episodes")]
    for each in steps:
        about = {"stage": each.stage, "step": each.step}
        events.append(_event(1, 1, f"rollout {each.step}", "rollout", each.start, each.rollout, about))
        events.append(_event(1, 2, f"update {each.step}", "update", each.start + each.rollout, each.update, about))
    lanes: dict[int, int] = {}
    left_out = 0
    for step, row in episodes:
        lanes[step] = lane = lanes.get(step, 0) + 1
        spans = spans_of(row)
        if len(events) + len(spans) > MOST_SPANS:
            left_out += 1
            continue
        for span in spans:
            about = {"episode": row["id"], "turn": span.turn, "step": step}
            start = begins.get(step, 0.0) + span.start
            events.append(_event(2, lane, span.name or span.kind, span.kind, start, span.seconds, about))
    said = "an episode's lane begins with its step's sampling: when it began is not on record"
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"said": said, "episodes_left_out": left_out},
    }


def _event(process: int, lane: int, name: str, kind: str, start: float, seconds: float, about: Any) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 1), "dur": round(seconds * 1e6, 1)}
    return {"name": name, "cat": kind, "ph": "X", "pid": process, "tid": lane, **times, "args": about}


def _named(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
