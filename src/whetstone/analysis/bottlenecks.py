"""Bottleneck analysis of a run: time of steps for sampling, learning, weight transfer and the rest.

    a step = time/rollout + time/update + the rest of time/elapsed_seconds (weight transfer, saving, evaluations)

The engine is the bottleneck if it computes for most of the sampling time. Otherwise it is whatever episodes wait for
most, or stragglers, if the longest episodes take several times as long as the others.

Note:
    `time/environment_wait_mean` is a mean over concurrent episodes. It is not a part of the duration of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from whetstone.errors import RunDirectoryError

"""Number of trajectories that are read, the last ones."""
_ENGINE = 0.6
"""Fraction of sampling time; if the engine computes for more, it is the bottleneck."""
_LONG = 3.0
"""Multiple of the median duration from which the slowest episodes of a group are stragglers."""


@dataclass(frozen=True, slots=True)
class SlowTool:
    """Durations of the calls of one tool."""

    name: str
    """Name of the tool."""
    calls: int
    """Number of calls."""
    mean: float
    """Mean seconds per call."""
    p95: float
    """95th percentile of the seconds per call."""
    most: float
    """Seconds of the longest call."""
    share: float
    """Fraction of the time of all tools."""


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Time of episodes by activity, as fractions of their total duration. Created by `measure_waits`."""

    episodes: int
    """Number of episodes with recorded times."""
    drawing: float
    """Fraction of the time in which tokens were sampled."""
    queueing: float
    """Fraction of the time spent waiting for a slot in the engine's batch."""
    environment: float
    """Fraction of the time in tools and in the environment."""
    stragglers: float
    """Mean ratio of the longest to the median duration in a group."""
    tools: tuple[SlowTool, ...]
    """Tools, the most time-consuming first."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Bottleneck of a stage, with the times that show it and a remedy."""

    bottleneck: str
    """`learner`, `engine`, `engine_queue`, `tools`, `stragglers`, `transfer`, `between`, `workers`."""
    said: str
    """Description with numbers."""
    attempt: str
    """Remedy, with recipe keys."""
    steps: int
    """Number of steps that were measured."""
    seconds: float
    """Mean duration of a step; the first is a warm-up and excluded if there are others."""
    parts: Mapping[str, float]
    """Fractions of a step: `sampling`, `learning`, `transfer`, `between`."""
    engine: float | None
    """Fraction of sampling time in which the engine computed; None if it is not on record."""
    slowest_step: int
    """Number of the slowest step, from 1."""
    waits: WaitStatistics | None
    """Activities of episodes; None if no episode is on record."""


def find_bottleneck(
    rows: Sequence[Mapping[str, Any]], waits: WaitStatistics | None, *, admit_ahead: int, max_in_flight: int
) -> Bottleneck:
    """Find the bottleneck of a stage.

    Args:
        rows: Rows of `metrics.jsonl` of one stage, in order.
        waits: Activities of its episodes.
        admit_ahead: Number of updates that sampling runs ahead.
        max_in_flight: Maximum number of concurrent episodes.

    Raises:
        RunDirectoryError: If no step has its duration on record.
    """
    steps = list(_lengths(rows))
    counted = steps[1:] or steps
    if not counted:
        raise RunDirectoryError(
            "metrics.jsonl: no step has time/rollout and time/update, so there is no bottleneck to find"
        )
    each = {name: fmean(step[name] for step in counted) for name in ("seconds", *_PARTS)}
    seconds = max(each["seconds"], 1e-9)
    parts = {name: each[name] / seconds for name in _PARTS}
    engine = _engine([row for row in rows if "time/rollout" in row][len(steps) - len(counted) :], seconds)
    slowest = max(counted, key=lambda step: step["seconds"])
    bottleneck = _bottleneck(parts, engine, waits, rows)
    said = _describe(bottleneck, parts, engine, waits, seconds)
    attempt = _attempt(bottleneck, waits, admit_ahead, max_in_flight)
    return Bottleneck(bottleneck, said, attempt, len(counted), seconds, parts, engine, int(slowest["step"]), waits)


_PARTS = ("sampling", "learning", "transfer", "between")


def _lengths(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, float]]:
    before: float | None = None
    for row in rows:
        if "time/update" not in row:
            continue
        sampling, learning = _of(row, "time/rollout"), _of(row, "time/update")
        elapsed = row.get("time/elapsed_seconds")
        # the elapsed time of a stage's first step includes the preceding stages
        duration = sampling + learning if elapsed is None or before is None else elapsed - before
        rest, before = max(0.0, duration - sampling - learning), elapsed
        transfer = min(_of(row, "scale/transfer_seconds"), rest)
        between = max(0.0, rest - transfer)
        parts = {"sampling": sampling, "learning": learning, "transfer": transfer, "between": between}
        yield {**parts, "seconds": sum(parts.values()), "step": float(row["step"])}


def _of(row: Mapping[str, Any], key: str) -> float:
    return float(row.get(key) or 0.0)


def _engine(rows: Sequence[Mapping[str, Any]], seconds: float) -> float | None:
    """Return the fraction of sampling time in which the engine computed; the mean over parallel replicas."""
    replicas = [row["scale/replica_utilization"] for row in rows if "scale/replica_utilization" in row]
    if replicas:
        return min(1.0, fmean(replicas))
    computed = [(row["time/generation"], row["time/rollout"]) for row in rows if "time/generation" in row]
    sampling = sum(rollout for _, rollout in computed)
    return min(1.0, sum(engine for engine, _ in computed) / sampling) if sampling > 0 else None


def _bottleneck(
    parts: Mapping[str, float],
    engine: float | None,
    waits: WaitStatistics | None,
    rows: Sequence[Mapping[str, Any]],
) -> str:
    longest = max(parts, key=lambda name: parts[name])
    if longest != "sampling":
        return {"learning": "learner"}.get(longest, longest)
    queued = [_of(row, "scale/worker_queue") for row in rows if "scale/worker_queue" in row]
    if engine is not None and engine >= _ENGINE:
        return "engine"
    if waits is not None and waits.stragglers >= _LONG:
        return "stragglers"
    if waits is None or waits.episodes == 0:
        return "tools" if engine is not None else "sampling"
    if queued and fmean(queued) > 1 and waits.environment < waits.drawing:
        return "workers"
    shares = {"tools": waits.environment, "engine_queue": waits.queueing, "engine": waits.drawing}
    return max(shares, key=lambda name: shares[name])


def _describe(
    bottleneck: str, parts: Mapping[str, float], engine: float | None, waits: WaitStatistics | None, seconds: float
) -> str:
    part = {"learner": "learning", "transfer": "transfer", "between": "between"}.get(bottleneck, "sampling")
    text = f"{_NAMES[bottleneck]}: {parts[part]:.0%} of a step's {seconds:.3g} s is {part}"
    if part != "sampling":
        return text
    if engine is not None:
        text += f", in {engine:.0%} of which the engine computes"
    if waits is None or waits.episodes == 0:
        return text
    text += (
        f"; an episode samples for {waits.drawing:.0%} of its time, waits for tools and environment for "
        f"{waits.environment:.0%} and in the engine's queue for {waits.queueing:.0%}"
    )
    if bottleneck == "stragglers":
        text += f"; the longest of a group takes {waits.stragglers:.1f} times as long as the median"
    if bottleneck in ("tools", "stragglers") and waits.tools:
        tool = waits.tools[0]
        text += f"; {tool.name} takes {tool.mean:.3g} s per call ({tool.p95:.3g} s at the 95th percentile)"
    return text


_NAMES = {
    "learner": "the learner",
    "engine": "the engine",
    "engine_queue": "slots in the engine's batch",
    "tools": "tools and environment",
    "stragglers": "the longest episodes",
    "transfer": "weight transfer to the replicas",
    "between": "the rest of a step, outside of sampling and learning",
    "workers": "slots in environment workers",
    "sampling": "sampling",
}


def _attempt(bottleneck: str, waits: WaitStatistics | None, admit_ahead: int, max_in_flight: int) -> str:
    ahead = "reinforcement.admit_ahead: 1 and max_staleness: 2 sample while the learner computes"
    own = {
        "learner": "larger reinforcement.micro_batch_tokens, fewer epochs, policy.lora, more learner processes"
        + ("" if admit_ahead else f"; {ahead}"),
        "engine": "more replicas (scale.engine_replicas), a served engine (engine: vllm), fewer "
        "rollout.max_new_tokens" + ("" if admit_ahead else f"; {ahead}"),
        "engine_queue": "a larger KV cache (engine.cache_gib), more replicas, or fewer rollout.max_in_flight",
        "tools": f"more concurrent episodes (rollout.max_in_flight is {max_in_flight}), faster or more tool workers, a "
        "shorter environment.tool_timeout_seconds" + ("" if admit_ahead else f"; {ahead}"),
        "stragglers": "reinforcement.max_staleness above admit_ahead lets fast groups overtake slow ones; "
        "environment.turn_timeout_seconds and rollout.group_timeout_seconds end the slowest",
        "transfer": "a faster link, policy.lora (only adapters are transferred), in_flight: continue",
        "between": "a larger checkpoint_interval_steps or evaluation.interval_steps, or evaluation in the background",
        "workers": "more scale.environment_workers, or a larger rollout.max_in_flight",
        "sampling": ahead,
    }
    return own[bottleneck]


def measure_waits(lines: Iterable[Mapping[str, Any]]) -> WaitStatistics:
    """Measure how episodes spend their time: sampling, queueing, tools and environment.

    Args:
        lines: Stored trajectories as JSON objects, such as those of `stored_lines`.
    """
    drawing = queueing = environment = 0.0
    episodes = 0
    took: defaultdict[str, list[float]] = defaultdict(list)
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        episodes += 1
        duration = 0.0
        for turn in line.get("turns") or ():
            generation, queue, answer = turn.get("seconds") or (0.0, 0.0, 0.0)
            drawing, queueing, environment = drawing + generation - queue, queueing + queue, environment + answer
            duration += generation + answer
            for call in turn.get("calls") or ():
                took[str(call[0])].append(float(call[2]))
        by_task[str(line.get("id", "")).partition("#")[0]].append(duration)
    every = max(drawing + queueing + environment, 1e-9)
    groups = [times for times in by_task.values() if len(times) > 1 and median(times) > 0]
    stragglers = fmean(max(times) / median(times) for times in groups) if groups else 1.0
    shares = (drawing / every, queueing / every, environment / every)
    return WaitStatistics(episodes, *shares, stragglers, tuple(_tools(took)))


def _tools(took: Mapping[str, Sequence[float]]) -> list[SlowTool]:
    total = max(sum(map(sum, took.values())), 1e-9)
    tools = [
        SlowTool(name, len(t), fmean(t), sorted(t)[int(0.95 * (len(t) - 1))], max(t), sum(t) / total)
        for name, t in took.items()
    ]
    return sorted(tools, key=lambda tool: -tool.share)
