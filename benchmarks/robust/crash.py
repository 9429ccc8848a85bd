"""Resume of runs that are killed at random moments: final weights and the accounting of groups.

Each run trains a small policy in a separate process and is killed with SIGKILL: after a random time, or at a random
write, sync, rename or gradient step (half of the killed writes are truncated). The run is resumed until it ends. If
the recipe determines the result (synchronous, or one step off with `deterministic`), the weights must be bit-identical
to those of an undisturbed run. In all runs each group must be part of exactly one update.

With `--recipe two-members` (two trained models play a game) or `--recipe reward-member` (a reward model is trained in
the run), runs are also killed at moments that only they have: between the updates of two members, and between the files
of two members in a checkpoint. Everything on record must be that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import re
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
from import_paths import python_path
from whetstone.chat import Message, user
from whetstone.environments import Observation, StepResult
from whetstone.learning.forward_passes import LocalPasses
from whetstone.recipe import load_recipe
from whetstone.record import checkpoint
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.record.run_store import RunStore
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import Interrupted, train
from whetstone.trajectory import Score, Task, Trajectory

STEPS, GROUPS, GROUP = 6, 2, 4
EVENTS = 230
"""Approximate number of events per run."""
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
MEMBERS = {
    "two-members": [
        "tasks={source: bargaining}",
        "environment={name: bargaining, actions: text, max_turns: 3}",
        "rollout.strategy={name: self_play, roles: [buyer, seller]}",
        "policies={buyer: {}, seller: {like: buyer, reinforcement: {learning_rate: 2.0e-3}}}",
    ],
    "reward-member": [
        "policies={solver: {}, scorer: {like: solver, reinforcement: {learning_rate: 2.0e-3}}}",
        "reward={name: reward_model, member: scorer, outcome: 'crash:odd'}",
    ],
}
"""Overrides of a run that trains two models."""
FEW = ["supervised.steps=1", "reinforcement.steps=3", "evaluation.episodes=1", "rollout.max_new_tokens=8"]
"""Overrides of a short run: one step of the warm-up, three updates, checkpoints after the second and the third."""
MOMENTS = {
    "sampling": ("append", range(2, 20)),
    "update": ("gradient", range(1, 8)),
    "saving": ("member", range(2, 6)),
    "any write": ("write", range(10, 100)),
}
"""Kind of event by moment, and the numbers of these events that a process is killed at.

Gradient 1 of a whole run is that of the warm-up; 2, 4 and 6 are those of the first member, 3, 5 and 7 those of the
second. Member 1 is the checkpoint of the warm-up; 2 and 3, 4 and 5 are the members in the others.
"""


class Talk:
    """Environment of three turns whose observation is the number of the turn."""

    def __init__(self) -> None:
        self.steps = 0

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt of the task."""
        self.steps = 0
        return Observation((user(task.prompt),))

    async def step(self, action: Message) -> StepResult:
        """Return the number of actions."""
        await asyncio.sleep(0.005)
        self.steps += 1
        return StepResult(Observation((user(f"{self.steps}"),)), terminated=self.steps == 3)

    async def close(self) -> None:
        """Release nothing."""


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """Return a score that differs between samples of an untrained policy."""
    return Score(float(sum(sum(turn.action.ids) for turn in trajectory.turns) % 2), success=True)


async def odd(trajectory: Trajectory, task: Task) -> Score:
    """Return the reward of `parity`, which is a success if it is 1."""
    score = await parity(trajectory, task)
    return Score(score.value, success=bool(score.value))


def member_overrides(recipe: str, way: str, model: Path) -> list[str]:
    """Return the overrides of a short run with two trained models (`MEMBERS`)."""
    return [*build_overrides(way, model), *FEW, *MEMBERS[recipe]]


def build_overrides(way: str, model: Path) -> list[str]:
    """Return overrides of the demo's recipe."""
    return [*SMALL, *WAYS[way], f"policy.path={model}"]


def child(
    overrides: Sequence[str], run_dir: str, die_at: int | tuple[str, int] | None, ask_after: int | None, twice: bool
) -> None:
    """Train or resume; optionally be killed at an event, or receive one or two SIGTERM after a number of updates."""
    torch.set_num_threads(1)
    if die_at is not None:
        kind, events = die_at if isinstance(die_at, tuple) else ("", die_at)
        die_after(events, kind)
    if ask_after is not None:
        stop_after(ask_after, twice)
    where = Path(run_dir)
    resume = (where / "recipe.yaml").is_file()
    with contextlib.suppress(Interrupted):
        train(load_recipe("demo", overrides), where, resume=resume, progress=Progress(quiet=True))


def stop_after(steps: int, twice: bool) -> None:
    """Send SIGTERM to this process after `steps` gradient steps."""
    left, apply_gradient = [steps], LocalPasses.apply

    def counted(self: LocalPasses) -> dict[str, float]:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            if twice:
                time.sleep(0.2)  # until the first signal is handled
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10.0)
        return apply_gradient(self)

    LocalPasses.apply = counted  # type: ignore[method-assign]


def die_after(events: int, kind: str = "") -> None:
    """Send SIGKILL to this process before the event with this number.

    Args:
        events: Number of the event, from 1.
        kind: `append` to a journal, `write` (a sync or rename), `gradient` (an optimizer step), or `member` (its files
            in a checkpoint). Empty: every event but `member` counts.
    """
    left = [events]

    def count(of: str, before: Callable[[], None] = lambda: None) -> None:
        if of != kind and (kind or of == "member"):
            return
        left[0] -= 1
        if left[0] == 0:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(of: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count(of)
            return function(*args, **kwargs)

        return call

    append = RunStore._append

    def torn(self: RunStore, file: Any, path: Path, line: bytes) -> None:
        count("append", lambda: file.write(line[: len(line) // 2]) if events % 2 == 0 else None)
        append(self, file, path, line)

    os.fsync, os.replace = counted("write", os.fsync), counted("write", os.replace)
    Path.rename = counted("write", Path.rename)  # type: ignore[method-assign]
    RunStore._append = torn  # type: ignore[method-assign]
    LocalPasses.apply = counted("gradient", LocalPasses.apply)  # type: ignore[method-assign]
    checkpoint._save_member = counted("member", checkpoint._save_member)


def train_speaking_policy(folder: Path, *, steps: int = 60) -> Path:
    """Train a policy that ends its turns, so that episodes have several turns."""
    short = [
        POLICY,
        f"supervised.steps={steps}",
        "supervised.decay_fraction=0",
        "supervised.batch_size=16",
        "evaluation.episodes=2",
        "ablations=null",
    ]
    nothing = ["reinforcement=null", "rollout=null", "objective=null", "advantage=null"]
    train(load_recipe("demo", [*short, *TALK, *nothing]), folder, progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def fork_server(module: str) -> ForkServerContext:
    """Return a fork server whose processes start with a module of this folder imported."""
    context = multiprocessing.get_context("forkserver")
    # the fork server finds modules only by the environment
    os.environ["PYTHONPATH"] = python_path()
    context.set_forkserver_preload([module])
    return context


class Processes:
    """Child processes that start with all modules imported."""

    def __init__(self) -> None:
        self.context = fork_server("crash")

    def run(
        self,
        overrides: Sequence[str],
        run_dir: Path,
        *,
        die_at: int | tuple[str, int] | None = None,
        ask_after: int | None = None,
        twice: bool = False,
        seconds: float | None = None,
    ) -> int:
        """Return the exit code; −9 if the process was killed, at an event or after `seconds`.

        Raises:
            RuntimeError: The process failed by itself.
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


def load_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Load the weights of the last checkpoint."""
    folder = latest_checkpoint(run_dir)
    assert folder is not None
    return load_file(folder / "model.safetensors")


def check_accounting(run_dir: Path) -> None:
    """Check that each group is part of exactly one update and that its trajectories are stored once.

    Raises:
        AssertionError: Something was lost or duplicated.
    """
    events = [json.loads(line) for line in (run_dir / "store" / "journal.jsonl").read_text().splitlines()]
    consumed = [number for event in events if event["event"] == "consumed" for number in event["groups"]]
    updates = [event["update"] for event in events if event["event"] == "consumed"]
    assert sorted(updates) == list(range(STEPS)), f"updates {updates}"
    assert len(consumed) == len(set(consumed)) == STEPS * GROUPS, f"groups {consumed}"
    admitted = [event["group"] for event in events if event["event"] == "admitted"]
    kept_groups = [event["group"] for event in events if event["event"] == "kept"]
    assert len(set(admitted)) == len(admitted)
    assert len(set(kept_groups)) == len(kept_groups)
    assert set(consumed) <= set(kept_groups) <= set(admitted)
    ids = [t.id for path in sorted((run_dir / "trajectories").glob("step-*")) for t in read_trajectories(path)]
    assert len(set(ids)) == len(ids) == GROUP * len(kept_groups)
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if row["stage"] == "reinforcement"] == list(range(1, STEPS + 1))


def differences(run_dir: Path, other: Path) -> list[str]:
    """Compare everything that two runs have on record, apart from times and `group/buffered`, which depends on time.

    Compared are all files of the last checkpoint (weights, optimizers and heads of all members), the metrics, the
    updates of the journal with their groups, and the trajectories of these groups.
    """
    one, two = _recorded(run_dir), _recorded(other)
    return [
        f"{name}: {key}"
        for name in one.keys() | two.keys()
        for key in one.get(name, {}).keys() | two.get(name, {}).keys()
        if not _is_same(one.get(name, {}).get(key), two.get(name, {}).get(key))
    ]


def _recorded(run_dir: Path) -> dict[str, dict[Any, Any]]:
    folder = latest_checkpoint(run_dir)
    assert folder is not None
    files: dict[Any, Any] = {}
    for path in folder.rglob("*.*"):
        if path.suffix == ".pt":
            files[str(path.relative_to(folder))] = torch.load(path, weights_only=True)
        elif path.is_file() and path.name not in ("position.json", checkpoint.CHECKSUMS.name):  # they have times
            files[str(path.relative_to(folder))] = path.read_bytes()
    events = [json.loads(line) for line in (run_dir / "store" / "journal.jsonl").read_text().splitlines()]
    updates = {event["update"]: event["groups"] for event in events if event["event"] == "consumed"}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    metrics = {
        (row["stage"], row["step"], name): value
        for row in rows
        for name, value in row.items()
        if name != "group/buffered" and not re.match(r"(members/[^/]+/)?(time|throughput|memory)\b", name)
    }
    used = {f"group-{number}" for numbers in updates.values() for number in numbers}
    trajectories = {
        each.id: (each.member, each.role, each.score, [(turn.context, turn.action) for turn in each.turns])
        for path in (run_dir / "trajectories").glob("step-*")
        for each in read_trajectories(path)
        if each.id.partition("/")[0] in used
    }
    return {folder.name: files, "journal": updates, "metrics": metrics, "trajectories": trajectories}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other) or (one != one and other != other)  # NaN is the same as NaN


def kill_at(processes: Processes, overrides: Sequence[str], run_dir: Path, moments: Sequence[tuple[str, int]]) -> int:
    """Train a run with one kill at each of these events in turn, then to its end.

    Returns:
        Number of kills; an event that the rest of the run does not have kills nothing.
    """
    codes = [processes.run(overrides, run_dir, die_at=moment) for moment in moments]
    if processes.run(overrides, run_dir) != 0:
        raise RuntimeError("a run without a kill did not end")
    return codes.count(-signal.SIGKILL)


def measure_members(recipe: str, runs: int, seed: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Kill runs of `MEMBERS` twice each, at each of the `MOMENTS` in turn, and compare them with a run without."""
    processes, numbers = Processes(), random.Random(seed)
    counts = {"runs": 0, "killed": 0, "kills": 0, "resumed": 0, "bit_identical": 0, "by_recipe": 0, "accounted": 0}
    with tempfile.TemporaryDirectory() as folder:
        model = train_speaking_policy(Path(folder) / "policy", steps=10)
        for way in BY_RECIPE:
            processes.run(member_overrides(recipe, way, model), Path(folder) / way)
        for number in range(runs):
            way, moment = BY_RECIPE[number % len(BY_RECIPE)], list(MOMENTS)[number % len(MOMENTS)]
            kind, which = MOMENTS[moment]
            run_dir, events = Path(folder) / "run", [(kind, numbers.choice(which)) for _ in range(2)]
            shutil.rmtree(run_dir, ignore_errors=True)
            kills = kill_at(processes, member_overrides(recipe, way, model), run_dir, events)
            different = differences(run_dir, Path(folder) / way)
            counts["kills"] += kills
            for name in ("runs", "by_recipe"):
                counts[name] += 1
            for name in ("killed", "resumed"):
                counts[name] += kills > 0
            for name in ("bit_identical", "accounted"):
                counts[name] += not different
            report(f"run {number} ({way}, {moment}: {events}): {kills} kills, {different[:5] or 'bit-identical'}")
    return counts


def run_with_kills(
    processes: Processes,
    overrides: Sequence[str],
    run_dir: Path,
    numbers: random.Random,
    *,
    kills: int,
    events: int,
    seconds: float,
) -> int:
    """Train with one to `kills` kills and return their number."""
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
        else:  # the run ended before the kill: start again
            shutil.rmtree(run_dir)
    if processes.run(overrides, run_dir) != 0:
        raise RuntimeError("an undisturbed run did not end")
    return struck


def measure(runs: int, kills: int, seed: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the three ways of training alternately and count intact results."""
    processes, numbers = Processes(), random.Random(seed)
    counts = {"runs": 0, "killed": 0, "kills": 0, "resumed": 0, "bit_identical": 0, "by_recipe": 0, "accounted": 0}
    with tempfile.TemporaryDirectory() as folder:
        reference_weights: dict[str, dict[str, torch.Tensor]] = {}
        model = train_speaking_policy(Path(folder) / "policy")
        for way in WAYS:
            began = time.perf_counter()
            processes.run(build_overrides(way, model), Path(folder) / way)
            seconds = time.perf_counter() - began
            reference_weights[way] = load_weights(Path(folder) / way)
        for number in range(runs):
            way = list(WAYS)[number % len(WAYS)]
            changes, run_dir = build_overrides(way, model), Path(folder) / "run"
            shutil.rmtree(run_dir, ignore_errors=True)
            struck = run_with_kills(processes, changes, run_dir, numbers, kills=kills, events=EVENTS, seconds=seconds)
            check_accounting(run_dir)
            counts["runs"] += 1
            counts["kills"] += struck
            counts["killed"] += struck > 0
            counts["resumed"] += struck > 0
            counts["accounted"] += 1
            if way in BY_RECIPE:
                same = all(
                    torch.equal(value, reference_weights[way][name]) for name, value in load_weights(run_dir).items()
                )
                counts["by_recipe"] += 1
                counts["bit_identical"] += same
                if not same:
                    report(f"run {number} ({way}) ended with different weights")
            if number % 10 == 9:
                report(f"{number + 1} runs: {counts}")
    return counts


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2, help="maximum number of kills per run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", choices=["one-member", *MEMBERS], default="one-member", help="models of a run")
    arguments = parser.parse_args()
    began = time.perf_counter()
    report = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    if arguments.recipe in MEMBERS:
        counts = measure_members(arguments.recipe, arguments.runs, arguments.seed, report)
    else:
        counts = measure(arguments.runs, arguments.kills, arguments.seed, report)
    result = {
        "name": "crash",
        "recipe": arguments.recipe,
        "measured": counts,
        "ratios": {"bit_identical": counts["bit_identical"] / max(1, counts["by_recipe"])},
        "goal": "every killed run resumes, nothing lost or doubled; bit-identical if the recipe determines it",
        "bound": "1",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{counts['runs']} runs, {counts['killed']} of them killed, {counts['kills']} kills: all resumed, nothing lost "
        f"or duplicated; {counts['bit_identical']} of {counts['by_recipe']} deterministic runs bit-identical"
    )


if __name__ == "__main__":
    main()
