"""Asynchronous against synchronous training with slow tools: throughput, success and utilization of environments.

The demo's task with a slow calculator (log-normal latency, median half a second), so that engine, tools of an episode
and learner take about 1 : 2 : 1 of a step. Each seed has one warm-up; from its weights synchronous and asynchronous
training make the same number of updates, and are evaluated on the same tasks.

A second part measures the utilization of many slow environments with an agent that responds immediately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from warm_up import train_warm_up
from whetstone.assembly import assemble
from whetstone.chat import Message, assistant, user
from whetstone.environments import Observation, StepResult
from whetstone.recipe import load_recipe
from whetstone.record.run_store import RunStore
from whetstone.reporting import Progress
from whetstone.rollout import Action, ActorInput, Admission, EpisodeLimits, GroupPlan, Independent
from whetstone.rollout import Collector as Collecting
from whetstone.tools.arithmetic_tools import pocket_calculator as exact_calculator
from whetstone.training import train
from whetstone.training.group_stream import GroupStream
from whetstone.trajectory import Author, Score, Task, Tokens, Trajectory

SIGMA, MEDIAN_SECONDS = 1.0, 0.5
COMMON = ["ablations=null", "rollout.max_in_flight=768"]
LEARNING = [
    "environment.tools=[asynchronous:pocket_calculator]",
    "environment.tool_timeout_seconds=60",
    "supervised=null",
    "policy.tiny=null",
    # the learner takes as long as the engine
    "reinforcement.epochs=6",
    "reinforcement.learning_rate=5.0e-4",
    "reinforcement.checkpoint_interval_steps=1000",
]
WAYS = {
    "synchronous": [],
    "one ahead": [
        "reinforcement.admit_ahead=1",
        "reinforcement.max_staleness=1",
        "importance_correction={name: masked, high: 5}",
    ],
    "asynchronous": [
        "reinforcement.admit_ahead=2",
        "reinforcement.max_staleness=4",
        "importance_correction={name: masked, high: 5}",
    ],
    # each turn is sampled by one version: new weights wait for turns in flight
    "asynchronous, drained": [
        "reinforcement.admit_ahead=2",
        "reinforcement.max_staleness=4",
        "reinforcement.in_flight=drain",
        "importance_correction={name: masked, high: 5}",
    ],
}
ENVIRONMENTS = ((64, 1.0), (256, 1.25))
"""(number, sigma of the log-normal latency) of environments; the median is 50 ms, an episode has three steps."""
_RATIOS = {
    "asynchronous": "vs_synchronous",
    "one ahead": "one_ahead_vs_synchronous",
    "asynchronous, drained": "drained_vs_synchronous",
}
_UPDATES = 12
_STORED = Path(__file__).parents[1] / "results" / "raw" / "async.json"
_latencies = random.Random(0)


async def pocket_calculator(expression: str) -> str:
    """One operation on two numbers.

    Args:
        expression: Two numbers with one of + - * / between them.
    """
    await asyncio.sleep(_latencies.lognormvariate(math.log(MEDIAN_SECONDS), SIGMA))
    return exact_calculator(expression)


def train_run(way: str, seed: int, steps: int, model: Path, folder: Path, more: list[str]) -> dict[str, Any]:
    """Train one run and return its seconds per step with their breakdown, and its final success."""
    overrides = [
        f"seed={seed}",
        *COMMON,
        *LEARNING,
        *WAYS[way],
        *more,
        f"policy.path={model}",
        f"reinforcement.steps={steps}",
    ]
    summary = train(load_recipe("demo", overrides), folder, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds_a_step": rows[-1]["time/elapsed_seconds"] / len(rows),
        "engine": statistics.fmean(row["time/generation"] for row in rows),
        "tools_of_an_episode": statistics.fmean(row["time/environment_wait_mean"] for row in rows),
        "learner": statistics.fmean(row["time/update"] for row in rows),
        "staleness": statistics.fmean(row["policy/staleness_mean"] for row in rows),
        "staleness_max": max(row["policy/staleness_max"] for row in rows),
        "tokens_an_episode": statistics.fmean(row["episode/action_tokens"] for row in rows),
        "before": summary.before.success,
        "success": summary.after.success,
        "interval": summary.after.interval,
    }


# ---------------------------------------------------------------- environments only


class SlowEnvironment:
    """Environment whose latency is sampled for each step."""

    busy = 0.0

    def __init__(self, numbers: random.Random, sigma: float) -> None:
        self.numbers, self.sigma, self.left = numbers, sigma, 3

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt of the task."""
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """Return the next observation after a random delay."""
        began = time.perf_counter()
        await asyncio.sleep(0.05 * self.numbers.lognormvariate(0.0, self.sigma))
        SlowEnvironment.busy += time.perf_counter() - began
        self.left -= 1
        return StepResult(Observation((user("go on"),)), terminated=self.left == 0)

    async def close(self) -> None:
        """Release nothing."""


class ImmediateActor:
    """Actor that returns the same action immediately."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.tokens = Tokens.from_ids(ids, Author.EXPERT)

    async def act(self, moment: ActorInput) -> Action:
        """See `Actor.act`."""
        return Action(self.tokens)

    def leave(self, episode: str) -> None:
        """See `Actor.leave`."""


async def no_reward(trajectory: Trajectory, task: Task) -> Score:
    """Return no reward."""
    return Score(0.0)


async def utilisation(ahead: int, bound: int, *, places: int, sigma: float, folder: Path) -> float:
    """Return the fraction of time that `places` environments are busy, with as many episodes per update."""
    assembly = assemble(load_recipe("demo"))
    numbers = random.Random(1)
    collector = Collecting(
        environment=lambda: SlowEnvironment(numbers, sigma),
        actor=ImmediateActor(tuple(assembly.chat.write(assistant("on"), ()))),
        chat=assembly.chat,
        reward=no_reward,
        limits=EpisodeLimits(max_turns=4, context_length=256, timeout_seconds=60.0),
        max_in_flight=places,
    )
    store = RunStore(folder, groups_per_file=places)
    stream = GroupStream(
        collector,
        Independent(group_size=1),
        lambda number: GroupPlan(Task(str(number), "go"), seed=0, number=number, name=f"group-{number}/"),
        store=store,
        admission=Admission(places, admit_ahead=ahead, total=None),
        next_number=0,
        max_staleness=bound,
        in_order=ahead == 0,
        max_failures=0,
    )
    SlowEnvironment.busy, began = 0.0, time.perf_counter()
    stream.start()
    for update in range(_UPDATES):
        groups = await stream.batch()
        store.consume_groups(update, [group.number for group in groups])
        stream.advance([group.number for group in groups])
    spent, busy = time.perf_counter() - began, SlowEnvironment.busy
    await stream.close()
    store.close()
    return busy / (places * spent)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="ways of training to run")
    parser.add_argument("--utilisation-only", action="store_true")
    parser.add_argument("--warm", type=Path, help="folder of warm-ups; finished ones are reused")
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument(
        "--model", type=Path, help="policy after a warm-up, for all seeds; defaults to one warm-up per seed"
    )
    parser.add_argument("--write", action="store_true", help="write raw/async.json and async.md into results")
    parser.add_argument("overrides", nargs="*", help="overrides of the recipe, for all ways")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        record = folder / "rows.jsonl"
        stored_rows = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
        for seed in range(0 if arguments.utilisation_only else arguments.seeds):
            model = arguments.model or train_warm_up(seed, (arguments.warm or folder) / f"warm-{seed}")
            for way in arguments.ways:
                run_dir = folder / f"{way}-{seed}"
                row = next((row for row in stored_rows if (row["seed"], row["way"]) == (seed, way)), None)
                if row is None:
                    shutil.rmtree(run_dir, ignore_errors=True)
                    figures = train_run(way, seed, arguments.steps, model, run_dir, arguments.overrides)
                    row = {"seed": seed, "way": way, **figures}
                    with record.open("a") as lines:
                        lines.write(json.dumps(row) + "\n")
                print(row, file=sys.stderr, flush=True)
        rows = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
        rows.sort(key=lambda row: (row["seed"], list(WAYS).index(row["way"])))
        shares: dict[str, float] = {}
        for places, sigma in ENVIRONMENTS:
            for ahead, bound in ((0, 0), (2, 4), (8, 16)):
                run_dir = Path(name) / f"environments-{places}-{ahead}"
                share = asyncio.run(utilisation(ahead, bound, places=places, sigma=sigma, folder=run_dir))
                shares[f"{places} environments, sigma {sigma:g}, {ahead} ahead, bound {bound}"] = share
    result = build_result(rows, shares, began)
    if arguments.write:
        stored = json.loads(_STORED.read_text()) if _STORED.is_file() and not rows else {}
        result = {
            **result,
            "measured": {**stored.get("measured", {}), **{k: v for k, v in result["measured"].items() if v}},
            "ratios": {**stored.get("ratios", {}), **result["ratios"]},
        }
        _STORED.write_text(json.dumps(result, indent=1) + "\n")
        (_STORED.parents[1] / f"{_STORED.stem}.md").write_text(page(result))
    if arguments.json:
        print(json.dumps(result))
        return
    for key, value in result["ratios"].items():
        print(f"{key}: {value:.2f}")
    for name, share in shares.items():
        print(f"environments at work {share:.1%} ({name})")


def build_result(rows: list[dict[str, Any]], shares: dict[str, float], began: float) -> dict[str, Any]:
    """Return the result as one object."""
    by_way = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    together, *_, ahead = list(shares.values())[-3:]
    ratios = {"environment_utilisation": ahead / together}
    bound = "environments always at work: 1 over the synchronous share"
    if rows:
        for way, name in _RATIOS.items():
            slow = {row["seed"]: row["seconds_a_step"] for row in by_way["synchronous"]}
            each = [slow[row["seed"]] / row["seconds_a_step"] for row in by_way[way] if row["seed"] in slow]
            if each:
                ratios[name] = statistics.median(each)
        least = statistics.fmean(row["engine"] + row["learner"] for row in by_way["asynchronous"])
        ratios["of_bound"] = least / statistics.fmean(row["seconds_a_step"] for row in by_way["asynchronous"])
        bound = "engine and learner share the cores: a step takes no less than both together"
    return {
        "name": "async",
        "measured": {"runs": rows, "environments_at_work": shares},
        "ratios": ratios,
        "goal": "vs_synchronous 1.6 at a bound of 4 with equal success, environment_utilisation 5",
        "bound": bound,
        **circumstances(began),
    }


def page(result: dict[str, Any]) -> str:
    """Return the page of a result, with published figures of other systems."""
    measured, ratios = result["measured"], result["ratios"]
    lines = [
        "# Asynchronous training: throughput, and published figures of other systems",
        "",
        f"`python -m benchmarks asynchronous --write`, {result['machine']['cores']} cores. The demo's task with a "
        "slow calculator (log-normal latency, median 0.5 s, σ 1); synchronous against `admit_ahead` 2 and "
        "`max_staleness` 4 (asynchronous) and both 1 (one ahead), with the same warm-up and number of updates.",
        "",
    ]
    if measured["runs"]:
        lines += [
            "| seed | way | s per step | engine | tools of an episode | learner | staleness | maximum | success |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in measured["runs"]:
            numbers = [row[k] for k in ("seconds_a_step", "engine", "tools_of_an_episode", "learner", "staleness")]
            cells = " | ".join(f"{number:.2f}" for number in numbers)
            low, high = row["interval"]
            success = f"{row['before']:.1%} → {row['success']:.1%} ({low:.1%} to {high:.1%})"
            lines.append(f"| {row['seed']} | {row['way']} | {cells} | {row['staleness_max']:.0f} | {success} |")
        quicker = f"Asynchronous steps are {ratios['vs_synchronous']:.2f} times faster (median over seeds)"
        lines += [
            "",
            f"{quicker}; engine and learner without waiting would take {ratios['of_bound']:.0%} of that time.",
        ]
        if aged := [row for row in measured["runs"] if row["way"] == "one ahead"]:
            ratio, oldest = ratios["one_ahead_vs_synchronous"], max(row["staleness_max"] for row in aged)
            lines.append(
                f"One update ahead, with a bound of one, they are {ratio:.2f} times faster, and the maximum staleness "
                f"of trained tokens is {oldest:.0f}."
            )
        if "drained_vs_synchronous" in ratios:
            lines.append(
                "If new weights wait for turns in flight (`in_flight: drain`, no turn of two versions), "
                f"asynchronous steps are {ratios['drained_vs_synchronous']:.2f} times faster."
            )
        lines.append("")
    lines += [
        "Utilization of environments, with an agent that responds immediately and as many episodes per update as "
        "environments.",
        "",
        "| environments | at work |",
        "| --- | --- |",
        *(f"| {name} | {share:.1%} |" for name, share in measured["environments_at_work"].items()),
        "",
        f"With eight updates ahead, 256 environments are {ratios['environment_utilisation']:.2f} times as busy as in "
        "the synchronous loop.",
        "",
        "## Published figures of other systems",
        "",
        "The published figures were measured on GPUs with models of billions of parameters, those of Whetstone on two "
        "cores.",
        "",
        "| system | published | Whetstone |",
        "| --- | --- | --- |",
    ]
    quicker = f"{ratios['vs_synchronous']:.2f} × the steps per second" if "vs_synchronous" in ratios else "not measured"
    one = f"{quicker}, with a bound of four"
    if "one_ahead_vs_synchronous" in ratios:
        one = f"{ratios['one_ahead_vs_synchronous']:.2f} × with a bound of one; {quicker} with four"
    partial = quicker
    if "drained_vs_synchronous" in ratios:
        partial = f"{quicker}, {ratios['drained_vs_synchronous']:.2f} × without partial turns"
    busier = f"environments {ratios['environment_utilisation']:.2f} × as busy"
    for system, claim, measured_here in (
        (
            "DART, arXiv:2509.23866",
            "1.6 × GPU use, 1.9 × training throughput, 5.5 × environment use",
            f"{quicker}; {busier}",
        ),
        ("AsyncFlow, arXiv:2507.01663", "1.59 × throughput on average, 2.03 × at most", one),
        (
            "RollArt, arXiv:2512.22560",
            "1.35 to 2.05 × end to end",
            f"{quicker}; with separate reward workers: {stored_ratio('rewards_apart', 'vs_one_process')}",
        ),
        (
            "AgentMath, arXiv:2512.20745",
            "4 to 5 × with partial rollouts and balanced requests",
            f"{partial}; of all three: {stored_ratio('requests_balanced', 'all')}",
        ),
        ("VerlTool, arXiv:2509.01055", "1.69 × (one turn), 2.06 × (three turns) the rollout", quicker),
    ):
        lines.append(f"| {system} | {claim} | {measured_here} |")
    return "\n".join(lines) + "\n"


def stored_ratio(name: str, ratio: str) -> str:
    """Return a ratio that another benchmark stored, with a link to its page."""
    path = _STORED.parent / f"{name}.json"
    if not path.is_file():
        return f"not measured (`{name}.py`)"
    return f"{json.loads(path.read_text())['ratios'][ratio]:.2f} × ([{name}]({name}.md))"


if __name__ == "__main__":
    main()
