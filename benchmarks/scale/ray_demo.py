"""Cost of a distributed run on Ray, per component, and throughput against the number of workers.

The first part is the demo after its warm-up: the same updates in one process, and with two environment workers and two
engine replicas on two raylets. Both must end with the same weights; only the time differs. `--learners 2` adds a run
with two learner processes, whose sums are rounded differently, so that only success is compared.

The second part has environments with latency (log-normal, median a quarter of a second, three steps per episode) and
measures groups per second and the utilization of slots with one, two, four and eight workers.
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
from whetstone.record.run_store import RunStore
from whetstone.reporting import Progress
from whetstone.rollout import GroupPlan
from whetstone.training import Interrupted, train
from whetstone.trajectory import Task

SPREAD = ["scale=ray", "scale.environment_workers=2", "scale.engine_replicas=2"]
MEDIAN_SECONDS, SIGMA, TURNS = 0.25, 1.0, 3
WORKERS = (1, 2, 4, 8)
PLACES = 8
LOOKS_SECONDS = 5.0
"""Minimum duration of a utilization measurement, which has two samples per second."""
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
    """Environment with latency."""

    def __init__(self) -> None:
        self.steps, self.numbers = 0, random.Random(0)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt of the task."""
        self.steps, self.numbers = 0, random.Random(seed)
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """Return the number of actions."""
        await asyncio.sleep(MEDIAN_SECONDS * self.numbers.lognormvariate(0.0, SIGMA))
        self.steps += 1
        return StepResult(Observation((user(f"{self.steps}"),)), terminated=self.steps == TURNS)

    async def close(self) -> None:
        """Release nothing."""


class Placed(Progress):
    """Progress that records when all actors are placed."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.began, self.seconds = time.perf_counter(), 0.0

    def say(self, text: str) -> None:
        """Record the time of that message."""
        if text.startswith("on Ray"):
            self.seconds = time.perf_counter() - self.began


def demo(
    policy: Path, steps: int, episodes: int, learners: int, folder: Path, until: float, report: Callable[[str], None]
) -> dict[str, Any] | None:
    """Run the same updates in one process, on two raylets, and there with several learners.

    Finished runs in the folder are reused, unfinished ones resumed. Returns None if the time limit was reached.

    Args:
        until: Time of `time.perf_counter` at which the run is stopped.
    """
    ways = {"one process": [], "two raylets": SPREAD}
    if learners > 1:
        ways[f"two raylets, {learners} learn"] = [*SPREAD, f"scale.learner_processes={learners}"]
    result: dict[str, Any] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for way, spread in ways.items():
        path = folder / f"{way.replace(' ', '-').replace(',', '')}.json"
        run_dir = path.with_suffix("")
        if not path.is_file():
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
            piece = train_run(overrides, run_dir, bool(spread), until)
            if piece is None:
                report(f"{way}: time limit reached; run the same command to resume")
                return None
            path.write_text(json.dumps(piece))
            report(f"{way}: {piece}")
        result[way], weights[way] = json.loads(path.read_text()), crash.load_weights(run_dir)
    one, two = weights["one process"], weights["two raylets"]
    result["same_weights"] = all(torch.equal(one[name], two[name]) for name in one)
    result["steps"], result["episodes"] = steps, episodes
    return result


def train_run(overrides: list[str], run_dir: Path, spread: bool, until: float) -> dict[str, Any] | None:
    """Train a run and return its result; None if the time limit was reached and the run was saved."""
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
    later = rows[1:] or rows  # the first includes one-time work
    pieces_read = [json.loads(line) for line in pieces.read_text().splitlines()]
    return {
        "success": [summary.before.success, summary.after.success],
        "interval": summary.after.interval,
        "pieces": len(pieces_read),
        "seconds": sum(each["seconds"] for each in pieces_read),
        "placing": statistics.median(each["placing"] for each in pieces_read),
        "record_seconds_a_step": sum(each["record"] for each in pieces_read) / len(rows),
        "seconds_per_step": statistics.median(row["time/rollout"] + row["time/update"] for row in later),
        **{part: statistics.median(row[part] for row in later) for part in PARTS if part in later[0]},
    }


async def throughput(groups: int, policy: Path, report: Callable[[str], None]) -> list[dict[str, float]]:
    """Measure groups per second with increasing numbers of workers on one cluster."""
    from whetstone.scaling.ray_cluster import start_ray_cluster

    resolved = load_recipe(
        "demo",
        [
            *crash.build_overrides("synchronous", policy),
            "environment.name=ray_demo:Slow",
            *SPREAD,
            f"scale.environment_workers={max(WORKERS)}",
            f"rollout.max_in_flight={PLACES * max(WORKERS)}",
            "rollout.max_new_tokens=8",
        ],
    )
    assembly = assemble(resolved)
    cluster = await start_ray_cluster(assembly, version=0, notify=report)
    results = []
    try:
        posts = list(cluster.pool.posts)
        for count in WORKERS:
            cluster.pool.posts = posts[:count]
            actor = assembly.policy_actor(cluster.engine, temperature=1.0)
            collector = cluster.distribute_collector(assembly.build_collector(actor, method=assembly.method))
            plans = [
                GroupPlan(assembly.source.task(k), seed=k, number=k, name=f"{count}-{k}/")
                for k in range(groups * count)
            ]
            cluster.metrics()
            began = time.perf_counter()
            train_run = [group async for group in collector.groups(plans, assembly.strategy)]
            seconds = time.perf_counter() - began
            numbers = cluster.metrics()
            turns = [len(t.turns) for group in train_run for t in group.trajectories]
            results.append(
                {
                    "workers": count,
                    "groups": len(train_run),
                    "seconds": seconds,
                    "episodes_per_second": len(turns) / seconds,
                    "turns_per_episode": statistics.mean(turns),
                    "worker_utilisation": numbers["scale/worker_utilization"],
                    "on_tools_fraction": numbers["scale/tool_wait_fraction"],
                    "replica_utilisation": numbers["scale/replica_utilization"],
                }
            )
            report(f"{results[-1]}")
    finally:
        await cluster.close()
    return results


def _format_number(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"


def _ratio(number: float | None, one: float | None) -> str:
    return f"{number / one:.2f}" if number and one else ""


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    measured = result["measured"]
    lines = ["# On Ray", ""]
    where = f"{result['machine']['system']}, {result['machine']['cores']} cores"
    lines += [f"`{result['command']}`, {where}, {result['seconds']:.0f} s.", ""]
    if (runs := measured.get("demo")) is not None:
        one, two = runs["one process"], runs["two raylets"]
        more = next((way for way in runs if way.startswith("two raylets, ")), None)
        third = runs[more] if more is not None else None
        lines += [
            f"## The demo, {runs['steps']} updates after its warm-up",
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
            line = f"| {meant} | {_format_number(a)} | {_format_number(b)} | {_ratio(b, a)} |"
            lines.append(
                line + (f" {_format_number(third.get(part))} | {_ratio(third.get(part), a)} |" if third else "")
            )
        num_pieces = max(run["pieces"] for run in runs.values() if isinstance(run, dict))
        lines += ["", f"Runs were stopped and resumed, in at most {num_pieces} pieces; each piece restarts Ray.", ""]
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
    parser.add_argument("--policy", type=Path, help="the demo after its warm-up; default: trains it first")
    parser.add_argument("--steps", type=int, default=100, help="updates of each run; 0 skips the demo")
    parser.add_argument("--episodes", type=int, default=500, help="held-out tasks")
    parser.add_argument("--groups", type=int, default=12, help="groups per worker for throughput; 0 skips it")
    parser.add_argument("--learners", type=int, default=1, help="learner processes of a third run")
    parser.add_argument("--seconds", type=float, default=86400.0, help="time limit; resume with --folder")
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--write", type=Path, help="folder for ray.json and ray.md")
    arguments = parser.parse_args()
    began = time.perf_counter()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    torch.set_num_threads(1)  # before any computation: two threads round differently from replicas with one
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
            demo_result = demo(policy, arguments.steps, arguments.episodes, arguments.learners, runs, until, report)
            if demo_result is None:
                return
            measured["demo"] = demo_result
        if arguments.groups:
            speaking = crash.train_speaking_policy(Path(folder) / "speaking")
            with two_raylets(cpus=2 * max(WORKERS)):
                measured["throughput"] = asyncio.run(throughput(arguments.groups, speaking, report))
    ratios = {}
    if "demo" in measured:
        runs = measured["demo"]
        ratios["vs_one_process"] = runs["one process"]["seconds_per_step"] / runs["two raylets"]["seconds_per_step"]
    if "throughput" in measured:
        rows = measured["throughput"]
        ratios["eight_workers_vs_one"] = rows[-1]["episodes_per_second"] / rows[0]["episodes_per_second"]
    result = {
        "name": "ray",
        "measured": measured,
        "ratios": ratios,
        "goal": "the weights and the success of one process; throughput that grows with workers",
        "bound": "8 workers of waiting episodes: 8 times one",
        "command": f"python -m benchmarks ray_demo --steps {arguments.steps} --episodes {arguments.episodes} "
        f"--groups {arguments.groups}" + (f" --learners {arguments.learners}" if arguments.learners > 1 else ""),
        **circumstances(began),
    }
    if arguments.write is not None:
        (arguments.write / "raw").mkdir(parents=True, exist_ok=True)
        (arguments.write / "raw" / "ray.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.write / "ray.md").write_text(page(result))
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
