"""What does a run wait for? Its steps taken apart into sampling, learning, weights under way and the rest, and what
episodes did while they were sampled.

    a step = time/rollout + time/update + the rest of time/elapsed_seconds (weights on their way, saving, evaluations)

Sampling is the engine's where the engine computed for most of it; else it is what an episode waits for most, or its
stragglers, where the longest take several times what the others take.

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

"""That are read, the last ones."""
_ENGINE = 0.6
"""Of sampling time in which an engine is what it waits for."""
_LONG = 3.0
"""Times the median, from which on the slowest of a group are stragglers."""


@dataclass(frozen=True, slots=True)
class SlowTool:
    """What calls of a tool took."""

    name: str
    calls: int
    mean: float
    """Seconds."""
    p95: float
    most: float
    share: float
    """Of all seconds in tools."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What episodes did, as shares of the time they took in all."""

    episodes: int
    drawing: float
    queueing: float
    """Waiting for a place in an engine's batch."""
    environment: float
    """In tools and environment."""
    stragglers: float
    """How many times the median the longest episode of a group took, in the mean."""
    tools: tuple[SlowTool, ...]
    """The most costly first."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """Where the time of a run went."""

    bottleneck: str
    """`learner`, `engine`, `engine_queue`, `tools`, `stragglers`, `transfer`, `between`, `workers`."""
    said: str
    """With its numbers."""
    attempt: str
    """What to try, with the keys."""
    steps: int
    seconds: float
    """Of a step, in the mean; the first does not count where there are others: it warms up."""
    parts: Mapping[str, float]
    """Shares of a step: `sampling`, `learning`, `transfer`, `between`."""
    engine: float | None
    """The share of sampling in which the engine computed; None: it is not on record."""
    slowest_step: int
    waits: Waits | None
    """None where no episode is on record."""


def slowness_of(
    rows: Sequence[Mapping[str, Any]], waits: Waits | None, *, admit_ahead: int, max_in_flight: int
) -> Slowness:
    """What a stage waits for.

    Args:
        rows: Of `metrics.jsonl`, of one stage, in order.
        waits: What its episodes did.
        admit_ahead: Updates sampling runs ahead.
        max_in_flight: Episodes under way at once.

    Raises:
        RunDirectoryError: No step says how long it took.
    """
    steps = list(_lengths(rows))
    counted = steps[1:] or steps
    if not counted:
        raise RunDirectoryError("no step on record says how long it took (time/rollout, time/update)")
    each = {name: fmean(step[name] for step in counted) for name in ("seconds", *_PARTS)}
    seconds = max(each["seconds"], 1e-9)
    parts = {name: each[name] / seconds for name in _PARTS}
    engine = _engine([row for row in rows if "time/rollout" in row][len(steps) - len(counted) :], seconds)
    slowest = max(counted, key=lambda step: step["seconds"])
    bottleneck = _bottleneck(parts, engine, waits, rows)
    said = _said(bottleneck, parts, engine, waits, seconds)
    attempt = _attempt(bottleneck, waits, admit_ahead, max_in_flight)
    return Slowness(bottleneck, said, attempt, len(counted), seconds, parts, engine, int(slowest["step"]), waits)


_PARTS = ("sampling", "learning", "transfer", "between")


def _lengths(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, float]]:
    before: float | None = None
    for row in rows:
        if "time/update" not in row:
            continue
        sampling, learning = _of(row, "time/rollout"), _of(row, "time/update")
        elapsed = row.get("time/elapsed_seconds")
        # the first step of a stage stands behind those of stages before, which took time of their own
        whole = sampling + learning if elapsed is None or before is None else elapsed - before
        rest, before = max(0.0, whole - sampling - learning), elapsed
        transfer = min(_of(row, "scale/transfer_seconds"), rest)
        between = max(0.0, rest - transfer)
        found = {"sampling": sampling, "learning": learning, "transfer": transfer, "between": between}
        yield {**found, "seconds": sum(found.values()), "step": float(row["step"])}


def _of(row: Mapping[str, Any], key: str) -> float:
    return float(row.get(key) or 0.0)


def _engine(rows: Sequence[Mapping[str, Any]], seconds: float) -> float | None:
    """The share of sampling in which it computed; replicas beside each other each count."""
    replicas = [row["scale/replica_utilization"] for row in rows if "scale/replica_utilization" in row]
    if replicas:
        return min(1.0, fmean(replicas))
    computed = [(row["time/generation"], row["time/rollout"]) for row in rows if "time/generation" in row]
    sampling = sum(rollout for _, rollout in computed)
    return min(1.0, sum(engine for engine, _ in computed) / sampling) if sampling > 0 else None


def _bottleneck(
    parts: Mapping[str, float],
    engine: float | None,
    waits: Waits | None,
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


def _said(
    bottleneck: str, parts: Mapping[str, float], engine: float | None, waits: Waits | None, seconds: float
) -> str:
    part = {"learner": "learning", "transfer": "transfer", "between": "between"}.get(bottleneck, "sampling")
    said = f"{_NAMES[bottleneck]}: {parts[part]:.0%} of a step's {seconds:.3g} s is {part}"
    if part != "sampling":
        return said
    if engine is not None:
        said += f", in {engine:.0%} of which the engine computes"
    if waits is None or waits.episodes == 0:
        return said
    said += (
        f"; an episode draws for {waits.drawing:.0%} of its time, waits for tools and environment for "
        f"{waits.environment:.0%} and in the engine's line for {waits.queueing:.0%}"
    )
    if bottleneck == "stragglers":
        said += f"; the longest of a group takes {waits.stragglers:.1f} times what the middle one takes"
    if bottleneck in ("tools", "stragglers") and waits.tools:
        tool = waits.tools[0]
        said += f"; {tool.name} takes {tool.mean:.3g} s a call ({tool.p95:.3g} s at the 95th percentile)"
    return said


_NAMES = {
    "learner": "the learner",
    "engine": "the engine",
    "engine_queue": "places in the engine's batch",
    "tools": "tools and environment",
    "stragglers": "the longest episodes",
    "transfer": "weights on their way to the replicas",
    "between": "what a step does beside sampling and learning",
    "workers": "places in environment workers",
    "sampling": "sampling",
}


def _attempt(bottleneck: str, waits: Waits | None, admit_ahead: int, max_in_flight: int) -> str:
    ahead = "reinforcement.admit_ahead: 1 and max_staleness: 2 sample while the learner computes"
    own = {
        "learner": "larger reinforcement.micro_batch_tokens, fewer epochs, policy.lora, more learner processes"
        + ("" if admit_ahead else f"; {ahead}"),
        "engine": "more replicas (scale.engine_replicas), a served engine (engine: vllm), fewer "
        "rollout.max_new_tokens" + ("" if admit_ahead else f"; {ahead}"),
        "engine_queue": "more room for keys (engine.cache_gib), more replicas, or fewer rollout.max_in_flight",
        "tools": f"more episodes at once (rollout.max_in_flight is {max_in_flight}), quicker or more tool workers, a "
        "shorter environment.tool_timeout_seconds" + ("" if admit_ahead else f"; {ahead}"),
        "stragglers": "reinforcement.max_staleness above admit_ahead lets quick groups go ahead of slow ones; "
        "environment.turn_timeout_seconds and rollout.group_timeout_seconds end the slowest",
        "transfer": "a quicker link, policy.lora (adapters alone travel), in_flight: continue",
        "between": "a larger checkpoint_interval_steps or evaluation.interval_steps, or evaluation in the background",
        "workers": "more scale.environment_workers, or a larger rollout.max_in_flight",
        "sampling": ahead,
    }
    return own[bottleneck]


def waits_of(lines: Iterable[Mapping[str, Any]]) -> Waits:
    """What episodes did.

    Args:
        lines: Of trajectories, as they are stored.
    """
    drawing = queueing = environment = 0.0
    episodes = 0
    took: defaultdict[str, list[float]] = defaultdict(list)
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        episodes += 1
        whole = 0.0
        for turn in line.get("turns") or ():
            generation, queue, answer = turn.get("seconds") or (0.0, 0.0, 0.0)
            drawing, queueing, environment = drawing + generation - queue, queueing + queue, environment + answer
            whole += generation + answer
            for call in turn.get("calls") or ():
                took[str(call[0])].append(float(call[2]))
        by_task[str(line.get("id", "")).partition("#")[0]].append(whole)
    every = max(drawing + queueing + environment, 1e-9)
    groups = [times for times in by_task.values() if len(times) > 1 and median(times) > 0]
    stragglers = fmean(max(times) / median(times) for times in groups) if groups else 1.0
    shares = (drawing / every, queueing / every, environment / every)
    return Waits(episodes, *shares, stragglers, tuple(_tools(took)))


def _tools(took: Mapping[str, Sequence[float]]) -> list[SlowTool]:
    whole = max(sum(map(sum, took.values())), 1e-9)
    found = [
        SlowTool(name, len(t), fmean(t), sorted(t)[int(0.95 * (len(t) - 1))], max(t), sum(t) / whole)
        for name, t in took.items()
    ]
    return sorted(found, key=lambda tool: -tool.share)
