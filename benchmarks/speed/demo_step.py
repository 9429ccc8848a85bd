"""Seconds of a reinforcement step of the recipe `demo`, and their ratio to the bound of its matrix products.

The policy is the demo's after its supervised stage, so that episodes have their usual length. A step samples 32 tasks
with 8 episodes each, runs the calculator, scores and updates. The bound of sampling is the time that the matrix
products of its tokens (prompt tokens that are not cached, and sampled tokens) take at the speed of
`torch.nn.functional.linear` with a batch of one token per episode, measured in the same process. Attention, sampling,
tools and scheduling are not part of the bound.

    python -m benchmarks demo_step --run runs/demo      with the supervised checkpoint of an existing run
    python -m benchmarks demo_step --folder FOLDER      the supervised stage is trained there once
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

import torch

from circumstances import circumstances
from whetstone.assembly import assemble
from whetstone.assembly.members import learner_for
from whetstone.compute_thread import run_in_compute_thread
from whetstone.garbage import collect_seldom, exclude_present_objects
from whetstone.recipe import load_recipe
from whetstone.record import latest_checkpoint
from whetstone.record.run_store import RunStore
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.reinforcement import Reinforcement

BATCH = 256
"""Tokens per matrix product of the bound: one per episode of a step."""
STAGE = ["ablations=null", "reinforcement=null", "rollout=null", "advantage=null", "objective=null"]
STEPS = ["ablations=null", "supervised=null", "policy.tiny=null"]


def supervised_policy(folder: Path) -> Path:
    """Train the supervised stage of the demo and return its checkpoint; an existing run is reused or resumed."""
    if not (folder / "summary.json").is_file():
        train(
            load_recipe("demo", STAGE),
            folder,
            resume=(folder / "recipe.yaml").is_file(),
            progress=Progress(quiet=True),
        )
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None  # training saves one at its end
    return checkpoint


@torch.inference_mode()
def products_per_second(model: Any) -> tuple[float, float]:
    """Return (floating-point operations per token, operations per second) of a model's linear layers with `BATCH` rows.

    The head is one of the layers.
    """
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    weights = [layer.weight.detach().clone() for layer in layers]
    inputs = [torch.randn(BATCH, weight.shape[1]).to(weight.dtype) for weight in weights]
    operations = 2.0 * sum(weight.numel() for weight in weights)
    seconds = []
    for _ in range(200):
        began = time.perf_counter()
        for rows, weight in zip(inputs, weights, strict=True):
            torch.nn.functional.linear(rows, weight)
        seconds.append(time.perf_counter() - began)
    return operations, BATCH * operations / statistics.median(seconds)


async def measure_steps(policy: Path, folder: Path, *, warm: int, steps: int) -> tuple[list[dict[str, float]], Any]:
    """Return the figures of each measured step, and the model."""
    resolved = load_recipe("demo", [*STEPS, f"policy.path={policy}", f"reinforcement.steps={warm + steps + 1}"])
    assembly = await run_in_compute_thread(assemble, resolved)
    settings = resolved.recipe.reinforcement
    assert settings is not None
    learner = await run_in_compute_thread(learner_for, assembly, settings, None)
    engine = await run_in_compute_thread(assembly.build_engine)
    store = RunStore(folder, groups_per_file=settings.tasks_per_step)
    work = Reinforcement(assembly, learner, engine, settings, store=store, base_version=0)
    figures: list[dict[str, float]] = []
    exclude_present_objects()  # as `train` does
    for step in range(warm + steps):
        before, began = engine.statistics, time.perf_counter()
        metrics = await work.step()
        seconds, after = time.perf_counter() - began, engine.statistics
        if step >= warm:
            figures.append(
                {
                    "seconds": seconds,
                    "sampling": metrics["time/rollout"],
                    "engine": after.busy_seconds - before.busy_seconds,
                    "sampled_tokens": after.decode_tokens - before.decode_tokens,
                    "prompt_tokens": after.prefill_tokens - before.prefill_tokens,
                    "engine_steps": after.steps - before.steps,
                }
            )
    return figures, assembly.policy.model


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--run", type=Path, help="run of the demo, whose supervised checkpoint is used")
    parser.add_argument("--folder", type=Path, default=Path("speed_ratios"), help="folder of the stage")
    parser.add_argument("--warm", type=int, default=2, help="unmeasured steps")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    arguments = parser.parse_args()
    began = time.perf_counter()
    policy = arguments.run or supervised_policy(arguments.folder / "demo")
    with tempfile.TemporaryDirectory() as folder, collect_seldom():  # as `train` does
        steps, model = asyncio.run(measure_steps(policy, Path(folder), warm=arguments.warm, steps=arguments.steps))
    operations, speed = products_per_second(model)
    medians = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    bound = (medians["sampled_tokens"] + medians["prompt_tokens"]) * operations / speed
    result = {
        "name": "demo step",
        "measured": medians
        | {"bound_seconds": bound, "gigaflops": speed / 1e9, "seconds_of_steps": [step["seconds"] for step in steps]},
        "ratios": {"bound_vs_sampling": bound / medians["sampling"], "bound_vs_engine": bound / medians["engine"]},
        "goal": "seconds 1.0, bound_vs_sampling 0.4",
        "bound": "matrix products of all computed tokens at the speed of a batch of 256",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{medians['seconds']:.2f} s per step (sampling {medians['sampling']:.2f}, of which engine "
        f"{medians['engine']:.2f}); {medians['sampled_tokens']:,.0f} sampled and {medians['prompt_tokens']:,.0f} "
        f"prompt tokens in {medians['engine_steps']:,.0f} engine steps"
    )
    print(
        f"bound of the matrix products: {bound:.2f} s at {speed / 1e9:.0f} GFLOP/s; sampling takes "
        f"{medians['sampling'] / bound:.1f} times as long, the engine {medians['engine'] / bound:.1f} times"
    )


if __name__ == "__main__":
    main()
