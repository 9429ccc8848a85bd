"""Runs on disk for tests of the viewer, written by the components that write them."""

import json

from whetstone.chat.message import ToolCall, assistant, tool_result, user
from whetstone.record import RunStore
from whetstone.reporting import Journal, write_trajectories
from whetstone.trajectory import Author, CallRecord, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

RECIPE = """title: Sums with a tool
policy: {tiny: {hidden_size: 8}}
tasks: {source: arithmetic}
reinforcement: {steps: 40, tasks_per_step: 2, learning_rate: 0.001}
supervised: {steps: 5}
"""


def episode(id, task, *, reward=1.0, says="42", tool="sum", outcome="ok", seconds=0.1, parts=None, **more):
    """Return an episode of two turns: a call, its result, and an answer."""
    written = Tokens.from_ids([1, 2, 3], Author.ENVIRONMENT)
    drawn = Tokens.from_samples([4, 5], logprobs=[-0.5, -1.5], versions=[7, 7], entropies=[0.25, 0.75])
    call = assistant("", ToolCall(tool, '{"a": 1}', "call_0"))
    first = Turn(
        written, drawn, call, (tool_result("41", call_id="call_0"),), calls=(CallRecord(tool, outcome, seconds),),
        opens_segment=True, generation_seconds=0.5, queue_seconds=0.2, environment_seconds=0.3,
    )  # fmt: skip
    last = Turn(Tokens.from_ids([6], Author.ENVIRONMENT), drawn, assistant(says), generation_seconds=0.4)
    score = Score(reward, parts or {"right": reward}, turns=(0.0, reward), success=reward > 0.5)
    fields = {"turns": (first, last), "ended": EndReason.TERMINATED, "seconds": 1.2, "score": score, **more}
    return Trajectory(id=id, task_id=task, opening=(user(f"Compute {task}"),), **fields)


def made_run(folder, *, steps=3, tasks=2, samples=2, metrics=True, **changes):
    """Write a run of reinforcement whose every second sample is correct, used step by step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    store = RunStore(folder, groups_per_file=tasks)
    for step in range(steps):
        numbers = range(step * tasks, (step + 1) * tasks)
        for number in numbers:
            played(store, number, samples, **changes)
        store.consume_groups(step, list(numbers))
        store.finish(step)
        if metrics:
            Journal(folder).record("reinforcement", step + 1, row(step))
    store.close()
    return folder


def played(store, number, samples=2, **changes):
    """Store a sampled group."""
    task = Task(f"sums/{number}", "")
    store.admit_group(number, 0, number)
    names = [f"group-{number}/{task.id}#{k}" for k in range(samples)]
    trajectories = [episode(name, task.id, reward=float(k % 2), **changes) for k, name in enumerate(names)]
    store.store_group(Group(task, tuple(trajectories), number))


def row(step, **more):
    """Return the metrics of a step that takes two seconds."""
    return {
        "episode/success": 0.5, "reward/mean": 0.5, "policy/entropy": 0.5, "episode/action_tokens": 4.0,
        "cost_per_step/episodes": 4.0, "cost_per_step/sampled_tokens": 16.0, "episode/invalid": 0.0,
        "time/rollout": 1.5, "time/update": 0.5, "time/generation": 0.75,
        "time/elapsed_seconds": 2.0 * (step + 1), **more,
    }  # fmt: skip


def evaluated(folder, name, success, interval, trajectories=()):
    """Write an evaluation into a run directory."""
    (folder / "evaluations").mkdir(exist_ok=True)
    fields = {"success": success, "interval": interval, "episodes": 100, "reward": success, "turns": 2.0}
    (folder / "evaluations" / f"{name}.json").write_text(json.dumps(fields))
    write_trajectories(folder / "trajectories" / f"evaluation-{name}.jsonl", trajectories)
