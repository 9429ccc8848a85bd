"""Training with tools that fail, hang and die: steps to the demo's success, with and without faults.

The calculator runs in worker processes. One call in ten fails like a server, one in fifty hangs until its deadline,
and one worker per second is killed. Both sides start from the same warm-up and are evaluated every few steps, without
faults, on the same held-out tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from circumstances import circumstances
from crash import fork_server
from warm_up import train_warm_up
from whetstone.assembly import assemble
from whetstone.assembly.members import learner_for
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import InfrastructureError
from whetstone.recipe import load_recipe
from whetstone.record.run_store import RunStore
from whetstone.tools.arithmetic_tools import pocket_calculator as exact_calculator
from whetstone.training import evaluate_policy
from whetstone.training.reinforcement import Reinforcement

GOAL = 0.95
FAILS, HANGS = 0.10, 0.02
OVERRIDES = [
    "ablations=null",
    "supervised=null",
    "policy.tiny=null",
    "environment.tools=[faults:pocket_calculator]",
    "environment.tool_timeout_seconds=1",
    "reinforcement.max_failures=400",
]


def work(pipe: Connection) -> None:
    """Run a worker that receives expressions and returns values or errors."""
    while True:
        expression = pipe.recv()
        try:
            pipe.send((exact_calculator(expression), None))
        except Exception as error:
            pipe.send((None, error))


class Workers:
    """Pool of calculator processes; a call that finds a dead process replaces it."""

    def __init__(self, count: int) -> None:
        self.context = fork_server("faults")
        self.idle: asyncio.Queue[tuple[Any, Connection]] = asyncio.Queue()
        self.all: set[Any] = set()
        for _ in range(count):
            self.idle.put_nowait(self.start_worker())

    def start_worker(self) -> tuple[Any, Connection]:
        """Start a worker and return it with its pipe."""
        parent_end, worker_end = self.context.Pipe()
        process = self.context.Process(target=work, args=(worker_end,), daemon=True)
        process.start()
        worker_end.close()
        self.all.add(process)
        return process, parent_end

    async def calculate(self, expression: str) -> str:
        """Evaluate an expression in the next idle worker.

        Raises:
            InfrastructureError: The worker died.
        """
        process, pipe = await self.idle.get()
        try:
            pipe.send(expression)
            answer, error = await asyncio.to_thread(pipe.recv)
        except (OSError, EOFError) as failure:
            happened["worker died"] += 1
            self.all.discard(process)
            process, pipe = await asyncio.to_thread(self.start_worker)
            raise InfrastructureError("the calculator's worker died") from failure
        finally:
            self.idle.put_nowait((process, pipe))
        if error is not None:
            raise error
        return str(answer)

    async def die(self, every_seconds: float) -> None:
        """Kill a random worker at a fixed interval."""
        while True:
            await asyncio.sleep(every_seconds)
            numbers.choice(list(self.all)).kill()

    def close(self) -> None:
        """Stop all workers."""
        for process in self.all:
            process.kill()


numbers = random.Random(0)
happened: Counter[str] = Counter()
workers: Workers | None = None
faulty = False


async def pocket_calculator(expression: str) -> str:
    """One operation on two numbers.

    Args:
        expression: Two numbers with one of + - * / between them.
    """
    if not faulty:
        return str(exact_calculator(expression))
    assert workers is not None
    happened["calls"] += 1
    fate = numbers.random()
    if fate < FAILS:
        happened["failed"] += 1
        raise InfrastructureError("the calculator's server is not there")
    if fate < FAILS + HANGS:
        happened["hung"] += 1
        await asyncio.sleep(3600)
    return await workers.calculate(expression)


async def train_run(
    seed: int, model: Path, folder: Path, *, faults: bool, steps: int, every: int, episodes: int
) -> dict[str, Any]:
    """Train a run and return the steps to its goal with the number of faults by kind."""
    global workers, faulty
    resolved = load_recipe("demo", [*OVERRIDES, f"seed={seed}", f"policy.path={model}", f"reinforcement.steps={steps}"])
    settings = resolved.recipe.reinforcement
    assert settings is not None
    assembly = await run_in_compute_thread(assemble, resolved)
    learner = await run_in_compute_thread(learner_for, assembly, settings, None)
    engine = await run_in_compute_thread(assembly.build_engine)
    store = RunStore(folder, groups_per_file=settings.tasks_per_step)
    training = Reinforcement(assembly, learner, engine, settings, store=store, base_version=0)
    workers, killing = Workers(4), None
    if faults:
        killing = asyncio.create_task(workers.die(1.0))
    happened.clear()
    reached, rates, invalid = None, [], 0.0
    began = time.perf_counter()
    for step in range(1, steps + 1):
        faulty = faults
        metrics = await training.step()
        faulty = False
        invalid += metrics["episode/invalid"]
        if step % every == 0 or step == steps:
            await engine.load_weights(dict(assembly.policy.model.named_parameters()), engine.version)
            evaluation, _ = await evaluate_policy(
                assembly, engine, episodes=episodes, samples=1, temperature=0.0, seed=seed
            )
            rates.append(evaluation.success)
            print(
                f"seed {seed} faults {faults} step {step}: {evaluation.success:.1%} {dict(happened)}", file=sys.stderr
            )
            if evaluation.success >= GOAL and reached is None:
                reached = step
                break
    if killing is not None:
        killing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killing
    await training.close()
    store.close()
    await engine.close()
    workers.close()
    return {
        "seed": seed,
        "faults": faults,
        "steps": reached,
        "success": rates[-1],
        "invalid_episodes": invalid,
        "happened": dict(happened),
        "on_record": dict(store.faults),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=4, help="steps between evaluations")
    parser.add_argument("--episodes", type=int, default=500, help="held-out tasks per evaluation")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for seed in range(arguments.seeds):
            model = train_warm_up(seed, Path(name) / f"warm-{seed}")
            for faults in (False, True):
                run_dir = Path(name) / f"{seed}-{faults}"
                settings = {"steps": arguments.steps, "every": arguments.every, "episodes": arguments.episodes}
                rows.append(asyncio.run(train_run(seed, model, run_dir, faults=faults, **settings)))
    without, with_them = ([row["steps"] for row in rows if row["faults"] is faults] for faults in (False, True))
    pairs = [(slow, plain) for slow, plain in zip(with_them, without, strict=True) if slow and plain]
    result = {
        "name": "faults",
        "measured": {"runs": rows},
        "ratios": {"steps_with_faults": statistics.median(slow / plain for slow, plain in pairs) if pairs else None},
        "goal": "at most 1.3 times the steps to 95 %",
        "bound": "1",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for row in rows:
        kind = "with faults" if row["faults"] else "without"
        print(f"seed {row['seed']} {kind}: 95 % after {row['steps']} steps, {row['success']:.1%}, {row['happened']}")


if __name__ == "__main__":
    # the recipe imports the tool from this module; it must be the same module object
    importlib.import_module("faults").main()
