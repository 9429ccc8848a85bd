"""Does a run that is killed go on as if nothing had happened? Killed at random moments, again and again.

Each run trains a small policy in a process of its own and is killed with SIGKILL: after a random time, or at a random
one of its writes, syncs, renames and gradient steps (in half of the writes with half of the bytes written). It is
resumed until it ends. Where the recipe decides (synchronous, one step off with `deterministic`), its weights must be
those of the run nobody killed, bit for bit; everywhere each group must have gone into exactly one update.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from circumstances import circumstances
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.learning.forward_passes import LocalPasses
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.record.store import RunStore
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import Interrupted, train
from whetstone.trajectory import Score, Task, Trajectory

STEPS, GROUPS, GROUP = 6, 2, 4
EVENTS = 230
"""About as many as a run has."""
POLICY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
TALK = ["reward=crash:parity", "environment={name: 'crash:Talk', max_turns: 4, tools: null, max_calls_per_turn: null}"]
SMALL = [
    *TALK,
    "policy.tiny=null",
    "supervised.steps=2",
    "supervised.batch_size=4",
    "supervised.learning_rate=1.0e-4",
    "supervised.checkpoint_interval_steps=1",
    f"reinforcement.steps={STEPS}",
    f"reinforcement.tasks_per_step={GROUPS}",
    "reinforcement.checkpoint_interval_steps=2",
    f"rollout.group_size={GROUP}",
    "rollout.max_new_tokens=20",
    "evaluation.episodes=2",
    "ablations=null",
]
WAYS = {
    "synchronous": [],
    "one step off, by recipe": [
        "reinforcement.admit_ahead=1",
        "reinforcement.max_staleness=1",
        "reinforcement.deterministic=true",
    ],
    "asynchronous": ["reinforcement.admit_ahead=2", "reinforcement.max_staleness=4"],
}
BY_RECIPE = ("synchronous", "one step off, by recipe")


class Talk:
    """Goes on for three turns, and counts them: what it says depends on where it stands."""

    def __init__(self) -> None:
        self.steps = 0

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The task."""
        self.steps = 0
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """How many actions there were."""
        await asyncio.sleep(0.005)
        self.steps += 1
        return StepResult(Observation((user(f"{self.steps}"),)), terminated=self.steps == 3)

    async def close(self) -> None:
        """Nothing is held."""


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """Differs between the samples of an untrained policy."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


def overrides_of(way: str, model: Path) -> list[str]:
    """Of the demo's recipe."""
    return [*SMALL, *WAYS[way], f"policy.path={model}"]


def child(overrides: Sequence[str], run_dir: str, die_at: int | None, ask_after: int | None, twice: bool) -> None:
    """Train, or go on; be killed at an event, or asked to stop after so many steps of learning, once or twice."""
    torch.set_num_threads(1)
    if die_at is not None:
        die_after(die_at)
    if ask_after is not None:
        stop_after(ask_after, twice)
    where = Path(run_dir)
    resume = (where / "recipe.yaml").is_file()
    with contextlib.suppress(Interrupted):
        train(load_recipe("demo", overrides), where, resume=resume, progress=Progress(quiet=True))


def stop_after(steps: int, twice: bool) -> None:
    """SIGTERM when so many gradient steps were made."""
    left, apply_gradient = [steps], LocalPasses.apply

    def counted(self: LocalPasses) -> dict[str, float]:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            if twice:
                time.sleep(0.2)  # until the first was heard
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10.0)
        return apply_gradient(self)

    LocalPasses.apply = counted  # type: ignore[method-assign]


def die_after(events: int) -> None:
    """SIGKILL at the event of this number: an append, a sync, a rename, a gradient step."""
    left = [events]

    def count(before: Callable[[], None] = lambda: None) -> None:
        left[0] -= 1
        if left[0] == 0:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, replace, rename = os.fsync, os.replace, Path.rename
    append, apply_gradient = RunStore._append, LocalPasses.apply

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count()
            return function(*args, **kwargs)

        return call

    def torn(self: RunStore, file: Any, path: Path, line: bytes) -> None:
        count(lambda: file.write(line[: len(line) // 2]) if left[0] % 2 == 0 else None)
        append(self, file, path, line)

    os.fsync, os.replace, Path.rename = counted(fsync), counted(replace), counted(rename)  # type: ignore[method-assign]
    RunStore._append = torn  # type: ignore[method-assign]
    LocalPasses.apply = counted(apply_gradient)  # type: ignore[method-assign]


def speaking(folder: Path) -> Path:
    """A policy that has learned to end its turns, so that its episodes have several."""
    short = [
        POLICY,
        "supervised.steps=60",
        "supervised.decay_fraction=0",
        "supervised.batch_size=16",
        "evaluation.episodes=2",
        "ablations=null",
    ]
    nothing = ["reinforcement=null", "rollout=null", "objective=null", "advantage=null"]
    train(load_recipe("demo", [*short, *TALK, *nothing]), folder, progress=Progress(quiet=True))
    found = latest_checkpoint(folder)
    assert found is not None
    return found


def fork_server(module: str) -> ForkServerContext:
    """What makes processes that have a module of this folder imported when they begin."""
    context = multiprocessing.get_context("forkserver")
    # the fork server finds modules by the environment alone
    here, known = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, known)))
    context.set_forkserver_preload([module])
    return context


class Processes:
    """Children that begin with everything imported."""

    def __init__(self) -> None:
        self.context = fork_server("crash")

    def run(
        self,
        overrides: Sequence[str],
        run_dir: Path,
        *,
        die_at: int | None = None,
        ask_after: int | None = None,
        twice: bool = False,
        seconds: float | None = None,
    ) -> int:
        """Exit code; −9 where it was killed, at an event or after so many seconds.

        Raises:
            RuntimeError: It ended by itself, in an error.
        """
        process = self.context.Process(target=child, args=(overrides, str(run_dir), die_at, ask_after, twice))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode
        if code not in (0, -signal.SIGKILL, 128 + signal.SIGTERM):
            raise RuntimeError(f"a run ended with {code}; it should have ended or been killed")
        return int(code)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Of the last checkpoint."""
    folder = latest_checkpoint(run_dir)
    assert folder is not None
    return load_file(folder / "model.safetensors")


def accounted(run_dir: Path) -> None:
    """Every update took its groups, every group went into one, and the trajectories of each are there once.

    Raises:
        AssertionError: Something was lost or doubled.
    """
    events = [json.loads(line) for line in (run_dir / "store" / "journal.jsonl").read_text().splitlines()]
    consumed = [number for event in events if event["event"] == "consumed" for number in event["groups"]]
    updates = [event["update"] for event in events if event["event"] == "consumed"]
    assert sorted(updates) == list(range(STEPS)), f"updates {updates}"
    assert len(consumed) == len(set(consumed)) == STEPS * GROUPS, f"groups {consumed}"
    admitted = [event["group"] for event in events if event["event"] == "admitted"]
    kept = [event["group"] for event in events if event["event"] == "kept"]
    assert len(set(admitted)) == len(admitted)
    assert len(set(kept)) == len(kept)
    assert set(consumed) <= set(kept) <= set(admitted)
    ids = [t.id for path in sorted((run_dir / "trajectories").glob("step-*")) for t in read_trajectories(path)]
    assert len(set(ids)) == len(ids) == GROUP * len(kept)
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if row["stage"] == "reinforcement"] == list(range(1, STEPS + 1))


def killed_run(
    processes: Processes,
    overrides: Sequence[str],
    run_dir: Path,
    numbers: random.Random,
    *,
    kills: int,
    events: int,
    seconds: float,
) -> int:
    """Train with one kill on the way, or up to so many; how many there were."""
    struck = 0
    while struck < kills:
        if numbers.random() < 0.5:
            code = processes.run(overrides, run_dir, die_at=numbers.randint(1, events))
        else:
            code = processes.run(overrides, run_dir, seconds=numbers.uniform(0.0, seconds))
        if code != 0:
            struck += 1
        elif struck:
            break
        else:  # it was over before it was struck: once more from the beginning
            shutil.rmtree(run_dir)
    if processes.run(overrides, run_dir) != 0:
        raise RuntimeError("a run that nobody killed did not end")
    return struck


def measure(runs: int, kills: int, seed: int, told: Callable[[str], None]) -> dict[str, Any]:
    """So many runs of the three ways in turn."""
    processes, numbers = Processes(), random.Random(seed)
    found = {"runs": 0, "killed": 0, "kills": 0, "resumed": 0, "bit_identical": 0, "by_recipe": 0, "accounted": 0}
    with tempfile.TemporaryDirectory() as folder:
        whole: dict[str, dict[str, torch.Tensor]] = {}
        model = speaking(Path(folder) / "policy")
        for way in WAYS:
            began = time.perf_counter()
            processes.run(overrides_of(way, model), Path(folder) / way)
            seconds = time.perf_counter() - began
            whole[way] = weights(Path(folder) / way)
        for number in range(runs):
            way = list(WAYS)[number % len(WAYS)]
            changes, run_dir = overrides_of(way, model), Path(folder) / "run"
            shutil.rmtree(run_dir, ignore_errors=True)
            struck = killed_run(processes, changes, run_dir, numbers, kills=kills, events=EVENTS, seconds=seconds)
            accounted(run_dir)
            found["runs"] += 1
            found["kills"] += struck
            found["killed"] += struck > 0
            found["resumed"] += struck > 0
            found["accounted"] += 1
            if way in BY_RECIPE:
                same = all(torch.equal(value, whole[way][name]) for name, value in weights(run_dir).items())
                found["by_recipe"] += 1
                found["bit_identical"] += same
                if not same:
                    told(f"run {number} ({way}) ended in other weights")
            if number % 10 == 9:
                told(f"{number + 1} runs: {found}")
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2, help="of each run, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    found = measure(arguments.runs, arguments.kills, arguments.seed, lambda line: print(line, file=sys.stderr))
    told = {
        "name": "crash",
        "measured": found,
        "ratios": {"bit_identical": found["bit_identical"] / max(1, found["by_recipe"])},
        "goal": "every killed run resumes, nothing lost or doubled; bit-identical where the recipe decides",
        "bound": "1",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    print(
        f"{found['runs']} runs, {found['killed']} of them killed, {found['kills']} kills: all resumed, nothing lost "
        f"or doubled; {found['bit_identical']} of {found['by_recipe']} bit-identical where the recipe decides"
    )


if __name__ == "__main__":
    main()
