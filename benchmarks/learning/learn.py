"""Time of the demo to 95 % success on held-out tasks, over three seeds.

Runs the recipe `demo` with an evaluation every few reinforcement steps; evaluation time does not count.
Prints a table, or one JSON object with `--json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.assembly import assemble
from whetstone.assembly.members import build_imitator, learner_for
from whetstone.compute_thread import run_in_compute_thread
from whetstone.recipe import load_recipe
from whetstone.record.run_store import RunStore
from whetstone.training import evaluate_policy
from whetstone.training.reinforcement import Reinforcement
from whetstone.training.supervised import Supervised

GOAL = 0.95


async def learn(seed: int, every: int, episodes: int, folder: str) -> dict[str, Any]:
    """Train one seed and return success after the warm-up, minutes to 95 %, and final success."""
    recipe = load_recipe("demo", [f"seed={seed}"]).recipe
    # all computation in one thread: two thread pools would halve the speed
    assembly = await run_in_compute_thread(assemble, load_recipe("demo", [f"seed={seed}"]))
    engine = await run_in_compute_thread(assembly.build_engine)
    warm_up, reinforcement = recipe.supervised, recipe.reinforcement
    assert warm_up is not None
    assert reinforcement is not None

    async def success() -> float:
        weights = dict(assembly.policy.model.named_parameters())
        await engine.load_weights(weights, engine.version)
        came_to, _ = await evaluate_policy(
            assembly, engine, episodes=episodes, samples=1, temperature=recipe.evaluation.temperature, seed=seed
        )
        return came_to.success

    seconds, tokens = 0.0, 0.0
    learner = await run_in_compute_thread(build_imitator, assembly, warm_up)
    imitating = Supervised(assembly, learner, engine, warm_up)
    for _ in range(warm_up.steps):
        began = time.perf_counter()
        await imitating.step()
        seconds += time.perf_counter() - began
    after_warm_up, warm_up_seconds = await success(), seconds
    reached, rate = None, after_warm_up
    learner = await run_in_compute_thread(learner_for, assembly, reinforcement, None)
    store = RunStore(Path(folder), groups_per_file=reinforcement.tasks_per_step)
    reinforcing = Reinforcement(assembly, learner, engine, reinforcement, store=store, base_version=engine.version)
    assert reinforcement.reference_kl == 0  # the learner has no reference policy here
    for step in range(reinforcement.steps):
        began = time.perf_counter()
        metrics = await reinforcing.step()
        spent = time.perf_counter() - began
        seconds += spent
        tokens += metrics["throughput/tokens_per_second"] * spent
        if (step + 1) % every == 0 or step + 1 == reinforcement.steps:
            rate = await success()
            print(f"seed {seed} step {step + 1}: {rate:.1%} after {seconds / 60:.2f} minutes", file=sys.stderr)
            if rate >= GOAL and reached is None:
                reached = seconds / 60
    await reinforcing.close()
    store.close()
    await engine.close()
    return {
        "seed": seed,
        "after_warm_up": after_warm_up,
        "warm_up_minutes": warm_up_seconds / 60,
        "minutes_to_95": reached,
        "minutes": seconds / 60,
        "success": rate,
        "tokens_per_second": tokens / (seconds - warm_up_seconds),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=5, help="reinforcement steps between evaluations")
    parser.add_argument("--episodes", type=int, default=500, help="held-out tasks per evaluation")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asyncio.run(learn(seed, arguments.every, arguments.episodes, folder)))
    reached = [row["minutes_to_95"] for row in rows if row["minutes_to_95"] is not None]
    result = {
        "name": "learn",
        "measured": {
            "minutes_to_95": statistics.median(reached) if len(reached) == len(rows) else None,
            "spread": [min(reached), max(reached)] if reached else None,
            "reached": f"{len(reached)} of {len(rows)}",
            "seeds": rows,
        },
        "ratios": {},
        "goal": "95 % on held-out tasks within 5 minutes of training, every seed",
        "bound": "none: how fast a policy can learn is not known beforehand",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for row in rows:
        to_goal = "not reached" if row["minutes_to_95"] is None else f"{row['minutes_to_95']:.2f} minutes"
        print(
            f"seed {row['seed']}: {row['after_warm_up']:.1%} after the warm-up ({row['warm_up_minutes']:.2f} minutes), "
            f"95 % in {to_goal}, {row['success']:.1%} at the end ({row['minutes']:.2f} minutes, "
            f"{row['tokens_per_second']:,.0f} sampled tokens/s)"
        )


if __name__ == "__main__":
    main()
