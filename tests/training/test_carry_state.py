"""State of method components continues in the next stage with its time stamps, and survives kills."""

import itertools
import json
from random import Random

import pytest
import torch

from support.episodes import group
from support.small import StopAfter, Stopped
from whetstone.errors import RecipeError
from whetstone.recipe import list_stages, load_recipe
from whetstone.record.checkpoint import Position, checkpoint_path, latest_checkpoint, read_position
from whetstone.reporting import Progress
from whetstone.rollout import MethodComponents, StepOutcome
from whetstone.rollout.context_transforms.lessons import Lessons
from whetstone.rollout.replay.success_replay import SuccessReplay
from whetstone.training import final_policy, train
from whetstone.training.carry_state import _the_same, latest_checkpoints_with_state, restore_component_state
from whetstone.trajectory_json import decode_trajectories

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 384}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=2",
         "rollout.group_size=3", "rollout.max_new_tokens=6", "reward=support.small:odd"]  # fmt: skip
REMEMBERS = {"rollout": {"context_transforms": [{"name": "lessons", "max_lessons": 4}], "replay": ["success_replay"]}}


def write_finished_run(run_dir, recipe, memory, *, steps=5, before=0):
    """Write a finished run with this state of its components."""
    path = checkpoint_path(run_dir, steps)
    (path / "trainer").mkdir(parents=True)
    position = {"stage": "reinforcement", "done": {"reinforcement": steps}, "version": steps, "memory": memory}
    (path / "trainer" / "position.json").write_text(json.dumps(position | {"steps_before": before}))
    (path / "trainer" / "checksums.json").write_text("{}")
    (run_dir / "recipe.yaml").write_text(recipe.dump())
    return path


def with_lessons(**more):
    return load_recipe("demo", ["ablations=null"], **REMEMBERS, **more)


def test_stored_state_of_a_renamed_key_is_found(tmp_path):
    rollout = {"start_states": {"name": "replay_prefix", "anneal_updates": 9}, "context_rewrites": ["fold"]}
    recipe = load_recipe("demo", ["ablations=null"], rollout=rollout)
    memory = {"start": {}, "rewrites.fold": {}, "stops.void_turn": {}}
    path = write_finished_run(tmp_path / "run", recipe, memory)
    assert latest_checkpoints_with_state(recipe, [tmp_path / "run"]) == [str(path)]
    assert _the_same(path, read_position(path), recipe.recipe) == ["start", "rewrites.fold"]


def test_same_component_keeps_its_state_and_a_changed_one_restarts(tmp_path):
    path = write_finished_run(tmp_path / "run", with_lessons(), {"context_transforms.lessons": {"library": ["add"]}})
    messages = []
    method, position = restore_component_state(
        MethodComponents(context_transforms={"lessons": Lessons(max_lessons=4)}),
        with_lessons(init_state_from=str(path)),
        Position("", {}, 0),
        log=messages.append,
    )
    assert method.state() == {"context_transforms.lessons": {"library": ["add"]}}
    assert position.steps_before == method.steps_before == 5
    assert messages == [f"context_transforms.lessons: state restored from {path}"]
    assert latest_checkpoints_with_state(with_lessons(), [tmp_path / "run"]) == [str(path)]
    other = load_recipe(
        "demo", ["ablations=null"], rollout={"context_transforms": [{"name": "lessons", "max_lessons": 2}]}
    )
    assert latest_checkpoints_with_state(other, [tmp_path / "run"]) == []
    with pytest.raises(
        RecipeError,
        match=r"init_state_from.0: .* has no state of a component that this recipe has with the same options",
    ):
        restore_component_state(
            MethodComponents(),
            other.with_changes(init_state_from=[str(path)]),
            Position("", {}, 0),
            log=messages.append,
        )


def test_each_component_continues_from_the_last_run_that_had_it(tmp_path):
    lessons = {"context_transforms.lessons": {"library": ["add"]}}
    replay = {"replay.success_replay": {"steps": 2, "stored": []}}
    first = write_finished_run(tmp_path / "a", with_lessons(), lessons, steps=3)
    write_finished_run(tmp_path / "b", with_lessons(), replay, steps=1)
    last = write_finished_run(tmp_path / "c", with_lessons(), replay, steps=2, before=4)
    runs = [tmp_path / name for name in "abc"]
    assert latest_checkpoints_with_state(with_lessons(), runs) == [str(first), str(last)]
    parts = MethodComponents(context_transforms={"lessons": Lessons()}, replay={"success_replay": SuccessReplay()})
    resolved = with_lessons(init_state_from=latest_checkpoints_with_state(with_lessons(), runs))
    method, position = restore_component_state(parts, resolved, Position("", {}, 0), log=lambda line: None)
    assert method.state() == lessons | replay
    assert position.steps_before == 6  # of the longest run: 4 + 2


def test_step_numbers_continue_and_versions_of_another_run_are_dropped():
    replay = SuccessReplay(min_reward=0.0, max_age_updates=3)
    first = MethodComponents(replay={"success_replay": replay})
    drawn = group(1.0)
    first.observe(StepOutcome(5, (drawn,), {}, Random(0)))
    (before,) = replay.buffer.get_trajectories(drawn.task.id)
    assert {version for turn in before.trajectory.turns for version in turn.action.versions} != {-1}
    restored = SuccessReplay(min_reward=0.0, max_age_updates=3)
    second = MethodComponents(replay={"success_replay": restored}, steps_before=5)
    second.hand_on(json.loads(json.dumps(first.state())))
    (stored,) = restored.buffer.get_trajectories(drawn.task.id)
    assert stored.step == 5
    assert {version for turn in stored.trajectory.turns for version in turn.action.versions} == {-1}
    second.observe(StepOutcome(3, (), {}, Random(0)))  # the eighth of all: 8 - 3 = 5 is still valid
    assert restored.buffer.get_trajectories(drawn.task.id, since=restored.steps - restored.max_age_updates)
    second.observe(StepOutcome(4, (), {}, Random(0)))
    assert not restored.buffer.get_trajectories(drawn.task.id, since=restored.steps - restored.max_age_updates)


def test_stage_can_start_without_state_and_the_first_stage_continues_from_another_run():
    stages = [{"reinforcement": {}}, {"reinforcement": {}}, {"reinforcement": {}, "init_state_from": "new"}]
    chain = list_stages(load_recipe("demo", PLAIN, stages=stages, init_state_from="runs/before", **REMEMBERS))
    assert [stage.resolved.recipe.init_state_from for stage in chain] == [["runs/before"], [], ["new"]]


def state_without_times(position):
    """Return the state of components without durations of episodes."""
    stored = [
        (task, step, [turn.action for t in decode_trajectories([line.encode()]) for turn in t.turns])
        for task, step, line in position.memory["replay.success_replay"]["stored"]
    ]
    return repr(stored), position.memory["context_transforms.lessons"], position.steps_before


@pytest.mark.slow
def test_rounds_keep_state_and_a_chain_killed_anywhere_has_the_same(tmp_path):
    stages = [
        {"reinforcement": {"steps": 2, "tasks_per_step": 2, "checkpoint_interval_steps": 1}},
        {"supervised": {"data": {"from_stage": "previous", "top_k_per_task": 1}, "steps": 1, "batch_size": 2}},
    ]
    resolved = load_recipe("demo", PLAIN, stages=stages, repeat_stages=2, **REMEMBERS)
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    ends = [
        read_position(latest_checkpoint(tmp_path / "whole" / "stages" / name))
        for name in ("1-reinforcement", "3-reinforcement")
    ]
    first, last = (end.memory["context_transforms.lessons"]["library"] for end in ends)
    assert first
    assert last[: len(first)] == first or len(last) == 4
    assert ends[1].steps_before == 2
    stored = [end.memory["replay.success_replay"]["stored"] for end in ends]
    assert {tuple(row[:2]) for row in stored[0]} <= {tuple(row[:2]) for row in stored[1]}
    killed = 0
    for steps in itertools.chain((1, 2, 1), itertools.repeat(99)):
        try:
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            killed += 1
            continue
        break
    assert killed >= 3
    one, other = (
        read_position(latest_checkpoint(tmp_path / name / "stages" / "3-reinforcement")) for name in ("whole", "killed")
    )
    assert state_without_times(one) == state_without_times(other)
    same = (final_policy(tmp_path / name).model.state_dict() for name in ("whole", "killed"))
    undisturbed, resumed = same
    assert all(torch.equal(value, resumed[name]) for name, value in undisturbed.items())
