"""What does a run cost that is spread over Ray, part by part, and how does it grow with its workers?

First the demo, behind its warm-up: the same updates in one process, and with two environment workers and two engine
replicas on two raylets. Both have to end in the same weights, and so in the same success; what differs is time. With
`--learners 2` once more with two processes that learn: their sums are rounded otherwise, so success alone is compared.

Then environments whose answers take a while (log-normal, median a quarter of a second, three to an episode): groups a
second, and the share of their places that hold an episode, with one, two, four and eight workers of as many places
each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import crash
from circumstances import circumstances
from two_raylets import two_raylets
from whetstone.assembly import assemble
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.record.store import RunStore
from whetstone.reporting import Progress
from whetstone.rollout import Plan
from whetstone.training import Interrupted, train
from whetstone.trajectory import Task

SPREAD = ["scale=ray", "scale.environment_workers=2", "scale.engine_replicas=2"]
MEDIAN_SECONDS, SIGMA, TURNS = 0.25, 1.0, 3
WORKERS = (1, 2, 4, 8)
PLACES = 8
LOOKS_SECONDS = 5.0
"""Shares are made of looks, two a second; of fewer they say nothing."""
PARTS = (
    "time/rollout",
    "time/update",
    "time/generation",
    "scale/transfer_seconds",
    "scale/learner_seconds",
    "scale/learner_transfer_seconds",
    "scale/replica_utilization",
)
MEANT = {
    "placing": "placing everything, once",
    "seconds_per_step": "a step",
    "time/rollout": "sampling: until a step's groups are there",
    "time/update": "from then on to the end of the step",
    "time/generation": "engines at work, all together",
    "scale/transfer_seconds": "new weights with all replicas, checked",
    "scale/learner_seconds": "an update in the slowest learning process",
    "scale/learner_transfer_seconds": "segments to learning processes, and weights back",
    "record_seconds_a_step": "the record's writes, a step",
    "scale/replica_utilization": "share of time in which replicas compute",
    "seconds": "the whole run",
}


class Slow:
    """Answers after a while."""

    def __init__(self) -> None:
        self.steps, self.numbers = 0, random.Random(0)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The task."""
        self.steps, self.numbers = 0, random.Random(seed)
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """How many actions there were."""
        await asyncio.sleep(MEDIAN_SECONDS * self.numbers.lognormvariate(0.0, SIGMA))
        self.steps += 1
        return StepResult(Observation((user(f"{self.steps}"),)), terminated=self.steps == TURNS)

    async def close(self) -> None:
        """Nothing is held."""


class Placed(Progress):
    """Hears when everything is placed."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.began, self.seconds = time.perf_counter(), 0.0

    def say(self, text: str) -> None:
        """Of all lines, that one counts."""
        if text.startswith("on Ray"):
            self.seconds = time.perf_counter() - self.began


def demo(
    policy: Path, steps: int, episodes: int, learners: int, folder: Path, until: float, told: Callable[[str], None]
) -> dict[str, Any] | None:
    """The same updates in one process, on two raylets, and there with several that learn; what is in the folder by
    then is not played again, and what was not over is gone on with. None: time was over first.

    Args:
        until: By the clock of `time.perf_counter`, when the run is stopped.
    """
    ways = {"one process": [], "two raylets": SPREAD}
    if learners > 1:
        ways[f"two raylets, {learners} learn"] = [*SPREAD, f"scale.learner_processes={learners}"]
    found: dict[str, Any] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for way, spread in ways.items():
        kept = folder / f"{way.replace(' ', '-').replace(',', '')}.json"
        run_dir = kept.with_suffix("")
        if not kept.is_file():
            overrides = [
                "policy.tiny=null",
                f"policy.path={policy}",
                "supervised=null",
                "ablations=null",
                f"reinforcement.steps={steps}",
                "reinforcement.learning_rate=1.0e-3",
                f"evaluation.episodes={episodes}",
                *spread,
            ]
            piece = played(overrides, run_dir, bool(spread), until)
            if piece is None:
                told(f"{way}: time is over; it is to be gone on with")
                return None
            kept.write_text(json.dumps(piece))
            told(f"{way}: {piece}")
        found[way], weights[way] = json.loads(kept.read_text()), crash.weights(run_dir)
    one, two = weights["one process"], weights["two raylets"]
    found["same_weights"] = all(torch.equal(one[name], two[name]) for name in one)
    found["steps"], found["episodes"] = steps, episodes
    return found


def played(overrides: list[str], run_dir: Path, spread: bool, until: float) -> dict[str, Any] | None:
    """What a run came to; None: time was over, and it is saved."""
    pieces, placed, written = run_dir.with_suffix(".pieces.jsonl"), Placed(), [0.0]
    append = RunStore._append

    def timed(self: RunStore, file: Any, path: Path, line: bytes) -> None:
        began = time.perf_counter()
        append(self, file, path, line)
        written[0] += time.perf_counter() - began

    clock = threading.Timer(until - time.perf_counter(), os.kill, (os.getpid(), signal.SIGTERM))
    clock.daemon = True
    clock.start()
    RunStore._append = timed  # type: ignore[method-assign]
    began, resume = time.perf_counter(), (run_dir / "recipe.yaml").is_file()
    try:
        with two_raylets(cpus=4) if spread else contextlib.nullcontext():
            placed.began = time.perf_counter()
            summary = train(load_recipe("demo", overrides), run_dir, resume=resume, progress=placed)
    except Interrupted:
        summary = None
    finally:
        clock.cancel()
        RunStore._append = append  # type: ignore[method-assign]
        piece = {"seconds": time.perf_counter() - began, "placing": placed.seconds, "record": written[0]}
        with pieces.open("a") as lines:
            lines.write(json.dumps(piece) + "\n")
    if summary is None:
        return None
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    later = rows[1:] or rows  # the first has what is done once
    every = [json.loads(line) for line in pieces.read_text().splitlines()]
    return {
        "success": [summary.before.success, summary.after.success],
        "interval": summary.after.interval,
        "pieces": len(every),
        "seconds": sum(each["seconds"] for each in every),
        "placing": statistics.median(each["placing"] for each in every),
        "record_seconds_a_step": sum(each["record"] for each in every) / len(rows),
        "seconds_per_step": statistics.median(row["time/rollout"] + row["time/update"] for row in later),
        **{part: statistics.median(row[part] for row in later) for part in PARTS if part in later[0]},
    }


async def throughput(groups: int, policy: Path, told: Callable[[str], None]) -> list[dict[str, float]]:
    """Groups a second with more and more workers, all on one cluster."""
    from whetstone.scaling.ray_cluster import begin_cluster

    resolved = load_recipe(
        "demo",
        [
            *crash.overrides_of("synchronous", policy),
            "environment.name=ray_demo:Slow",
            *SPREAD,
            f"scale.environment_workers={max(WORKERS)}",
            f"rollout.max_in_flight={PLACES * max(WORKERS)}",
            "rollout.max_new_tokens=8",
        ],
    )
    assembly = assemble(resolved)
    cluster = await begin_cluster(assembly, version=0, say=told)
    found = []
    try:
        posts = list(cluster.pool.posts)
        for count in WORKERS:
            cluster.pool.posts = posts[:count]
            actor = assembly.policy_actor(cluster.engine, temperature=1.0)
            collector = cluster.spread(assembly.collector(actor, method=assembly.method))
            plans = [
                Plan(assembly.source.task(k), seed=k, number=k, name=f"{count}-{k}/") for k in range(groups * count)
            ]
            cluster.metrics()
            began = time.perf_counter()
            played = [group async for group in collector.groups(plans, assembly.strategy)]
            seconds = time.perf_counter() - began
            numbers = cluster.metrics()
            turns = [len(t.turns) for group in played for t in group.trajectories]
            found.append(
                {
                    "workers": count,
                    "groups": len(played),
                    "seconds": seconds,
                    "episodes_per_second": len(turns) / seconds,
                    "turns_per_episode": statistics.mean(turns),
                    "worker_utilisation": numbers["scale/worker_utilization"],
                    "on_tools_fraction": numbers["scale/tool_wait_fraction"],
                    "replica_utilisation": numbers["scale/replica_utilization"],
                }
            )
            told(f"{found[-1]}")
    finally:
        await cluster.close()
    return found


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"


def _ratio(number: float | None, one: float | None) -> str:
    return f"{number / one:.2f}" if number and one else ""


def page(said: dict[str, Any]) -> str:
    """The results for a reader."""
    measured = said["measured"]
    lines = ["# On Ray", ""]
    where = f"{said['machine']['system']}, {said['machine']['cores']} cores"
    lines += [f"`{said['command']}`, {where}, {said['seconds']:.0f} s.", ""]
    if (runs := measured.get("demo")) is not None:
        one, two = runs["one process"], runs["two raylets"]
        more = next((way for way in runs if way.startswith("two raylets, ")), None)
        third = runs[more] if more is not None else None
        lines += [
            f"## The demo, {runs['steps']} updates behind its warm-up",
            "",
            "Two environment workers and two engine replicas on two raylets, one thread each; weights equal bit for "
            f"bit: {'yes' if runs['same_weights'] else 'NO'}; greedy success on {runs['episodes']} held-out tasks "
            f"{one['success'][0]:.1%} → {one['success'][1]:.1%} (95 % interval {one['interval'][0]:.1%} to "
            f"{one['interval'][1]:.1%}) in one process, {two['success'][0]:.1%} → "
            f"{two['success'][1]:.1%} on two raylets"
            + (f", {third['success'][0]:.1%} → {third['success'][1]:.1%} on {more}." if third is not None else "."),
            "",
            "| part, seconds, median of a step | one process | two raylets | ratio |"
            + (f" {more} | ratio |" if third else ""),
            "| --- | --- | --- | --- |" + (" --- | --- |" if third else ""),
        ]
        for part, meant in MEANT.items():
            a, b = one.get(part), two.get(part)
            line = f"| {meant} | {_shown(a)} | {_shown(b)} | {_ratio(b, a)} |"
            lines.append(line + (f" {_shown(third.get(part))} | {_ratio(third.get(part), a)} |" if third else ""))
        begun = max(run["pieces"] for run in runs.values() if isinstance(run, dict))
        lines += ["", f"Runs were stopped and resumed, in {begun} pieces at most; each piece begins Ray anew.", ""]
    if (rows := measured.get("throughput")) is not None:
        lines += [
            f"## Environments that take their time: {TURNS} answers, median {MEDIAN_SECONDS:g} s, σ {SIGMA:g}",
            "",
            f"{PLACES} places a worker, two engine replicas.",
            "",
            "| workers | episodes | seconds | episodes/s | against one | places in use | on tools | replicas at work |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        least = rows[0]["episodes_per_second"]
        for row in rows:
            shares = [row[name] for name in ("worker_utilisation", "on_tools_fraction", "replica_utilisation")]
            long = row["seconds"] >= LOOKS_SECONDS
            lines.append(
                f"| {row['workers']:.0f} | {row['episodes_per_second'] * row['seconds']:.0f} | {row['seconds']:.1f} | "
                f"{row['episodes_per_second']:.1f} | {row['episodes_per_second'] / least:.2f} | "
                + " | ".join(f"{share:.0%}" if long else "too short" for share in shares)
                + " |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--policy", type=Path, help="the demo behind its warm-up; none: it is warmed up first")
    parser.add_argument("--steps", type=int, default=100, help="updates of each run; 0: the demo is left out")
    parser.add_argument("--episodes", type=int, default=500, help="held-out tasks")
    parser.add_argument(
        "--groups", type=int, default=12, help="of a worker, where throughput is measured; 0: it is not"
    )
    parser.add_argument("--learners", type=int, default=1, help="processes that learn, in a third run")
    parser.add_argument("--seconds", type=float, default=86400.0, help="after which a run is stopped; --folder goes on")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and counted if they are there already")
    parser.add_argument("--write", type=Path, help="a folder for ray.json and ray.md")
    arguments = parser.parse_args()
    began = time.perf_counter()

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    torch.set_num_threads(1)  # before anything computes: two threads round a last bit otherwise than replicas with one
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.steps:
            policy = arguments.policy
            if policy is None:
                train(
                    load_recipe("demo", ["reinforcement=null", "ablations=null", "evaluation.episodes=1"]),
                    Path(folder) / "warm",
                    progress=Progress(quiet=True),
                )
                policy = latest_checkpoint(Path(folder) / "warm")
            runs = arguments.folder or Path(folder)
            runs.mkdir(parents=True, exist_ok=True)
            until = began + arguments.seconds
            found = demo(policy, arguments.steps, arguments.episodes, arguments.learners, runs, until, told)
            if found is None:
                return
            measured["demo"] = found
        if arguments.groups:
            speaking = crash.speaking(Path(folder) / "speaking")
            with two_raylets(cpus=2 * max(WORKERS)):
                measured["throughput"] = asyncio.run(throughput(arguments.groups, speaking, told))
    ratios = {}
    if "demo" in measured:
        runs = measured["demo"]
        ratios["vs_one_process"] = runs["one process"]["seconds_per_step"] / runs["two raylets"]["seconds_per_step"]
    if "throughput" in measured:
        rows = measured["throughput"]
        ratios["eight_workers_vs_one"] = rows[-1]["episodes_per_second"] / rows[0]["episodes_per_second"]
    said = {
        "name": "ray",
        "measured": measured,
        "ratios": ratios,
        "goal": "the weights and the success of one process; throughput that grows with workers",
        "bound": "8 workers of waiting episodes: 8 times one",
        "command": f"python benchmarks/ray_demo.py --steps {arguments.steps} --episodes {arguments.episodes} "
        f"--groups {arguments.groups}" + (f" --learners {arguments.learners}" if arguments.learners > 1 else ""),
        **circumstances(began),
    }
    if arguments.write is not None:
        (arguments.write / "ray.json").write_text(json.dumps(said, indent=1) + "\n")
        (arguments.write / "ray.md").write_text(page(said))
    print(json.dumps(said) if arguments.json else page(said))


if __name__ == "__main__":
    main()
