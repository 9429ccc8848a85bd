"""Overhead of an evaluation: episodes per second, relative to the collector.

The demo's tiny, untrained policy on held-out tasks at temperature 1: only the collector; an evaluation; an evaluation
that stores every finished group; and an evaluation that finds all groups stored. All alternate several times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone import training
from whetstone.assembly import RunComponents, assemble
from whetstone.recipe import load_recipe
from whetstone.rollout import Independent, make_plans


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    began = time.perf_counter()
    result = {**asyncio.run(_measure(arguments)), **circumstances(began)}
    if arguments.json:
        print(json.dumps(result))
        return
    for name, rates in result["measured"].items():
        print(f"{name:<28} {statistics.median(rates):8.1f} episodes per second")
    print(result["ratios"])


async def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    assembly = assemble(load_recipe("demo", ["evaluation.temperature=1.0", "rollout.max_new_tokens=12"]))
    tasks = list(assembly.source.held_out(arguments.tasks))
    count = len(tasks) * arguments.samples
    rates: dict[str, list[float]] = {"collector": [], "evaluation": [], "evaluation, kept": [], "on record": []}
    engine = assembly.build_engine()
    options: dict[str, Any] = {
        "episodes": arguments.tasks,
        "samples": arguments.samples,
        "temperature": 1.0,
        "seed": 0,
    }
    try:
        for number in range(arguments.rounds + 1):
            with tempfile.TemporaryDirectory() as name:
                record = training.EvaluationRecord(Path(name))
                record.open({})
                seconds = {}
                seconds["collector"] = await _measure_seconds(
                    _collect_groups(assembly, engine, tasks, arguments.samples)
                )
                seconds["evaluation"] = await _measure_seconds(training.evaluate_policy(assembly, engine, **options))
                seconds["evaluation, kept"] = await _measure_seconds(
                    training.evaluate_policy(assembly, engine, **options, record=record)
                )
                seconds["on record"] = await _measure_seconds(
                    training.evaluate_policy(assembly, engine, **options, record=record)
                )
            if number:  # the first round is a warm-up
                for what, spent in seconds.items():
                    rates[what].append(count / spent)
    finally:
        await engine.close()
    middle = {what: statistics.median(each) for what, each in rates.items()}
    return {
        "name": "evaluation",
        "measured": rates,
        "ratios": {
            "evaluation_vs_collector": middle["evaluation"] / middle["collector"],
            "kept_vs_collector": middle["evaluation, kept"] / middle["collector"],
        },
        "goal": "an evaluation is as fast as the collector",
        "bound": "it is the collector, and what its episodes came to is counted behind it",
    }


async def _collect_groups(assembly: RunComponents, engine: Any, tasks: list[Any], samples: int) -> None:
    collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
    async for _ in collector.groups(make_plans(tasks, seed=1), Independent(group_size=samples)):
        pass


async def _measure_seconds(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
