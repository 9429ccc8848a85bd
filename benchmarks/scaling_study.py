"""What becomes of 1,000 to 10,000 GPUs, on paper? Utilisation against staleness, tool latency, lengths and failures.

A model of eight billion parameters on H100s; three eighths of the GPUs learn, the others are replicas of one each; an
update takes eight episodes a GPU. Rates are those of `whetstone plan`. What does not depend on how large the cluster is
(everything but the learner's failures and the longest of all episodes) is simulated as a slice of it; how far the
slowest of ever more episodes hold an update up, whole.

Writes docs/scaling/*.svg and benchmarks/results/scaling.json with `--write`.
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
from whetstone.reporting.charts import curves
from whetstone.scaling.plan_hardware import GPUS, MODELS
from whetstone.scaling.plan_rates import EngineFacts, Rates, engine_rates, learner_rates, mean_context
from whetstone.scaling.simulation import simulate
from whetstone.scaling.simulation_scenario import EpisodeShape, Failures, Scenario, Spread

ROOT = Path(__file__).parents[1]
SLICE, EPISODES_A_GPU, GROUP = 16, 8, 8
SHAPE = EpisodeShape(
    turns=Spread(6, 0.6, most=24),
    prompt_tokens=Spread(512),
    turn_tokens=Spread(400, 0.6, most=2048),
    observation_tokens=Spread(256, 0.5),
    tool_seconds=Spread(2, 1.0, most=120),
)
BOUNDS = {"synchronous": (0, 0), "bound 2": (1, 2), "bound 4": (2, 4), "bound 8": (4, 8)}
SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
SIGMAS = (0.0, 0.3, 0.6, 0.9, 1.2)
FAILURES = (0.0, 1.0, 3.0, 6.0, 12.0, 24.0)
SIZES = (16, 64, 256)


def scenario(gpus: int, ahead: int, bound: int, shape: EpisodeShape = SHAPE, **more: Any) -> Scenario:
    """A cluster of so many GPUs, or as large a slice of a larger one."""
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


def against(xs: Sequence[float], scenarios: Mapping[str, Sequence[Scenario]]) -> dict[str, Any]:
    """What each comes to."""
    found: dict[str, Any] = {"x": list(xs)}
    for name, each in scenarios.items():
        runs = [simulate(one) for one in each]
        found[name] = [
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
    return found


def staleness() -> dict[str, Any]:
    """Utilisation against the bound: admission goes half as far, and as far."""
    bounds = (0, 1, 2, 4, 8, 12)
    half = [scenario(SLICE, (bound + 1) // 2, bound) for bound in bounds]
    strict = [scenario(SLICE, bound, bound) for bound in bounds]
    return against(bounds, {"ahead half the bound": half, "ahead the bound": strict})


def latency() -> dict[str, Any]:
    """Utilisation against how long tools take."""
    shapes = [replace(SHAPE, tool_seconds=Spread(mean, 1.0, most=120)) for mean in SECONDS]
    every = {name: [scenario(SLICE, *bounds, shape) for shape in shapes] for name, bounds in BOUNDS.items()}
    return against(SECONDS, every)


def lengths() -> dict[str, Any]:
    """Utilisation against how far lengths are apart."""
    shapes = [
        replace(SHAPE, turns=Spread(6, sigma, most=24), turn_tokens=Spread(400, sigma, most=2048)) for sigma in SIGMAS
    ]
    every = {name: [scenario(SLICE, *bounds, shape) for shape in shapes] for name, bounds in BOUNDS.items()}
    return against(SIGMAS, every)


def failures() -> dict[str, Any]:
    """Utilisation against failures an hour of the whole cluster, of 10,240 GPUs: three eighths are the learner's."""

    def at(hourly: float, ahead: int, bound: int) -> Scenario:
        whole = 10_240
        one = hourly / whole
        losses = Failures(replica_per_hour=one, learner_per_hour=one * whole * 3 / 8, restart_seconds=300)
        return scenario(8, ahead, bound, failures=losses, updates=160, seed=1)

    return against(FAILURES, {name: [at(h, *BOUNDS[name]) for h in FAILURES] for name in ("synchronous", "bound 4")})


def growth() -> dict[str, Any]:
    """Utilisation against the number of GPUs, each simulated whole: the slowest of ever more episodes."""
    every = {
        name: [scenario(gpus, *BOUNDS[name], updates=4, skip=1) for gpus in SIZES]
        for name in ("synchronous", "bound 4")
    }
    return against(SIZES, every)


STUDIES = {
    "staleness": (staleness, "bound on staleness, updates"),
    "latency": (latency, "seconds of a tool call, in the mean"),
    "lengths": (lengths, "σ of turns and of tokens in a turn"),
    "failures": (failures, "failures an hour among 10,240 GPUs"),
    "growth": (growth, "GPUs"),
}


def drawn(name: str, found: Mapping[str, Any]) -> str:
    """The plot of a study: the share of time in which the learner's GPUs are at work."""
    series = {key: (found["x"], [row["learner"] for row in rows]) for key, rows in found.items() if key != "x"}
    return curves(series, x_label=f"learner at work, by {STUDIES[name][1]}", percent=True)


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STUDIES, nargs="*", default=list(STUDIES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/scaling/*.svg and results/scaling.json")
    arguments = parser.parse_args()
    began = time.perf_counter()
    target = ROOT / "benchmarks" / "results" / "scaling.json"
    told: dict[str, Any] = {"name": "scaling", "measured": {}}
    if target.is_file():
        told = json.loads(target.read_text())
    for name in arguments.only:
        told["measured"][name] = STUDIES[name][0]()
        told |= circumstances(began)
        if arguments.write:
            (ROOT / "docs" / "scaling").mkdir(exist_ok=True)
            (ROOT / "docs" / "scaling" / f"{name}.svg").write_text(drawn(name, told["measured"][name]))
            target.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(told))
        return
    for name in arguments.only:
        for key, rows in told["measured"][name].items():
            shown = rows if key == "x" else [f"{row['learner']:.0%} {row['bottleneck']}" for row in rows]
            print(f"{name}, {key}: {shown}")


if __name__ == "__main__":
    main()
