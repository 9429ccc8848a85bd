"""Simulated utilization of 1,000 to 10,000 GPUs against staleness, tool latency, lengths and failures.

A model of eight billion parameters on H100s; three eighths of the GPUs are learners, the others engine replicas with
one GPU each; an update has eight episodes per GPU. Rates are those of `whetstone plan`. Effects that do not depend on
the cluster's size (all but the learner's failures and the longest episode) are simulated on a slice of it; the delay by
the slowest of more episodes is simulated on the full cluster.

Writes docs/guide/scaling/*.svg and benchmarks/results/raw/scaling.json with `--write`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.recipe import load_recipe
from whetstone.reporting.charts import plot_curves
from whetstone.scaling.plan_hardware import GPUS, MODELS
from whetstone.scaling.plan_rates import EngineFacts, Rates, engine_rates, learner_rates, mean_context
from whetstone.scaling.simulation import simulate_run
from whetstone.scaling.simulation_scenario import EpisodeShape, Failures, LognormalSpread, Scenario

ROOT = Path(__file__).parents[2]
SLICE, EPISODES_A_GPU, GROUP = 16, 8, 8
SHAPE = EpisodeShape(
    turns=LognormalSpread(6, 0.6, maximum=24),
    prompt_tokens=LognormalSpread(512),
    turn_tokens=LognormalSpread(400, 0.6, maximum=2048),
    observation_tokens=LognormalSpread(256, 0.5),
    tool_seconds=LognormalSpread(2, 1.0, maximum=120),
)
BOUNDS = {"synchronous": (0, 0), "bound 2": (1, 2), "bound 4": (2, 4), "bound 8": (4, 8)}
SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
SIGMAS = (0.0, 0.3, 0.6, 0.9, 1.2)
FAILURES = (0.0, 1.0, 3.0, 6.0, 12.0, 24.0)
SIZES = (16, 64, 256)


def scenario(gpus: int, ahead: int, bound: int, shape: EpisodeShape = SHAPE, **more: Any) -> Scenario:
    """Return the scenario of a cluster of `gpus` GPUs, or of such a slice of a larger one."""
    size, gpu, learners = MODELS["8b"], GPUS["h100"], gpus * 3 // 8
    settings = load_recipe("demo").recipe.reinforcement
    assert settings is not None
    context = mean_context(shape)
    engine = engine_rates(EngineFacts(), size, gpu, tensor_parallel=1, sequences=64, context=context)
    learner = learner_rates(
        Rates(),
        size,
        gpu,
        settings,
        learners=learners,
        travel=size.parameters,
        trained=size.parameters,
        tensor_parallel=1,
        context=context,
    )
    return Scenario(
        engine=replace(engine, replicas=gpus - learners),
        episode=shape,
        learner=learner,
        groups_per_update=gpus * EPISODES_A_GPU // GROUP,
        group_size=GROUP,
        max_in_flight=64 * gpus,
        admit_ahead=ahead,
        max_staleness=bound,
        in_flight="continue",
        **{"updates": 14, "skip": 4, **more},
    )


def simulate_all(xs: Sequence[float], scenarios: Mapping[str, Sequence[Scenario]]) -> dict[str, Any]:
    """Simulate scenarios and return their utilization."""
    results: dict[str, Any] = {"x": list(xs)}
    for name, each in scenarios.items():
        runs = [simulate_run(one) for one in each]
        results[name] = [
            {
                "learner": run.shares.learner,
                "sampler": run.shares.sampler,
                "seconds": run.seconds_per_update,
                "staleness": run.staleness_mean,
                "bottleneck": run.bottleneck,
                "restarts": run.restarts,
            }
            for run in runs
        ]
    return results


def staleness() -> dict[str, Any]:
    """Measure utilization against the staleness bound, with admission up to half of it and up to all of it."""
    bounds = (0, 1, 2, 4, 8, 12)
    half = [scenario(SLICE, (bound + 1) // 2, bound) for bound in bounds]
    strict = [scenario(SLICE, bound, bound) for bound in bounds]
    return simulate_all(bounds, {"ahead half the bound": half, "ahead the bound": strict})


def latency() -> dict[str, Any]:
    """Measure utilization against tool latency."""
    shapes = [replace(SHAPE, tool_seconds=LognormalSpread(mean, 1.0, maximum=120)) for mean in SECONDS]
    scenarios = {name: [scenario(SLICE, *bounds, shape) for shape in shapes] for name, bounds in BOUNDS.items()}
    return simulate_all(SECONDS, scenarios)


def lengths() -> dict[str, Any]:
    """Measure utilization against the spread of lengths."""
    shapes = [
        replace(
            SHAPE, turns=LognormalSpread(6, sigma, maximum=24), turn_tokens=LognormalSpread(400, sigma, maximum=2048)
        )
        for sigma in SIGMAS
    ]
    scenarios = {name: [scenario(SLICE, *bounds, shape) for shape in shapes] for name, bounds in BOUNDS.items()}
    return simulate_all(SIGMAS, scenarios)


def failures() -> dict[str, Any]:
    """Measure utilization against failures per hour of a cluster of 10,240 GPUs, three eighths of them learners."""

    def at(hourly: float, ahead: int, bound: int) -> Scenario:
        num_gpus = 10_240
        one = hourly / num_gpus
        losses = Failures(replica_per_hour=one, learner_per_hour=one * num_gpus * 3 / 8, restart_seconds=300)
        return scenario(8, ahead, bound, failures=losses, updates=160, seed=1)

    return simulate_all(
        FAILURES, {name: [at(h, *BOUNDS[name]) for h in FAILURES] for name in ("synchronous", "bound 4")}
    )


def growth() -> dict[str, Any]:
    """Measure utilization against the number of GPUs, simulated without slices."""
    scenarios = {
        name: [scenario(gpus, *BOUNDS[name], updates=4, skip=1) for gpus in SIZES]
        for name in ("synchronous", "bound 4")
    }
    return simulate_all(SIZES, scenarios)


STUDIES = {
    "staleness": (staleness, "bound on staleness, updates"),
    "latency": (latency, "mean seconds of a tool call"),
    "lengths": (lengths, "σ of turns and of tokens in a turn"),
    "failures": (failures, "failures an hour among 10,240 GPUs"),
    "growth": (growth, "GPUs"),
}


def draw_plot(name: str, study: Mapping[str, Any]) -> str:
    """Return the plot of a study: the utilization of the learner's GPUs."""
    series = {key: (study["x"], [row["learner"] for row in rows]) for key, rows in study.items() if key != "x"}
    return plot_curves(series, x_label=f"learner at work, by {STUDIES[name][1]}", percent=True)


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STUDIES, nargs="*", default=list(STUDIES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--write", action="store_true", help="write docs/guide/scaling/*.svg and results/raw/scaling.json"
    )
    arguments = parser.parse_args()
    began = time.perf_counter()
    target = ROOT / "benchmarks" / "results" / "raw" / "scaling.json"
    result: dict[str, Any] = {"name": "scaling", "measured": {}}
    if target.is_file():
        result = json.loads(target.read_text())
    for name in arguments.only:
        result["measured"][name] = STUDIES[name][0]()
        result |= circumstances(began)
        if arguments.write:
            (ROOT / "docs" / "guide" / "scaling").mkdir(exist_ok=True)
            (ROOT / "docs" / "guide" / "scaling" / f"{name}.svg").write_text(draw_plot(name, result["measured"][name]))
            target.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))
        return
    for name in arguments.only:
        for key, rows in result["measured"][name].items():
            values = rows if key == "x" else [f"{row['learner']:.0%} {row['bottleneck']}" for row in rows]
            print(f"{name}, {key}: {values}")


if __name__ == "__main__":
    main()
