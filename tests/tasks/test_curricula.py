"""The next task is a function of the observed groups and of the group's own random generator."""

import json

import pytest

from support.episodes import group, path, step_outcome
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random
from whetstone.tasks import Arithmetic
from whetstone.tasks.curricula import GeneratedTasks, Pool, StagedTasks, TaskSubset, UpperBound
from whetstone.tasks.curricula.staged import stage_by_length
from whetstone.tasks.curricula.task_subset import fill_gaps, learning_impact, solved_tasks
from whetstone.tasks.curricula.ucb import softmax_weights, upper_bounds
from whetstone.trajectory import Group, Provenance, Task

SOURCE = Arithmetic()
KINDS = ["product", "product_then_sum", "sum_then_product"]


def choose_tasks(curriculum, numbers=range(40), step=0, first=100):
    indices = [curriculum.choose(SOURCE, first, n, step, derive_random("c", n)) for n in numbers]
    assert all(index >= first for index in indices)
    return [SOURCE.task(index) for index in indices]


def group_of_kind(kind, *rewards):
    return group(*rewards, task=Task(kind, "", {}, {"kind": kind}))


# ------------------------------------------------------------ upper bounds


def test_dump_worked_numbers():
    bounds = upper_bounds([0.8, 0.5, 0.1], [300, 100, 10])
    assert bounds == pytest.approx([0.99998, 0.84522, 1.14608], abs=1e-5)
    assert softmax_weights(bounds, 0.1) == pytest.approx([0.18105, 0.03852, 0.78043], abs=1e-5)


def test_it_starts_uniformly_and_prefers_kinds_with_a_signal():
    curriculum = UpperBound(kinds=KINDS)
    assert curriculum.kind_weights == dict.fromkeys(KINDS, 1 / 3)
    assert {task.tags["kind"] for task in choose_tasks(curriculum)} == set(KINDS)
    for step in range(60):
        groups = [group_of_kind(kind, 1, 0, 1, 0) for kind in KINDS]
        named = [Group(g.task, tuple(path(f"{g.task.id}/{t.id}", 1) for t in g.trajectories)) for g in groups]
        sizes = {t.id: float(g.task.id == KINDS[1]) for g in named for t in g.trajectories}
        curriculum.observe(step_outcome(*named, step=step + 1, advantages=sizes))
    assert curriculum.kind_weights[KINDS[1]] > 0.9
    assert sum(task.tags["kind"] == KINDS[1] for task in choose_tasks(curriculum)) > 30
    restored = UpperBound(kinds=KINDS)
    restored.load_state(curriculum.state())
    assert restored.kind_weights == curriculum.kind_weights
    assert [t.id for t in choose_tasks(restored)] == [t.id for t in choose_tasks(curriculum)]


def test_infinite_temperature_is_uniform():
    curriculum = UpperBound(kinds=KINDS, temperature=1e9)
    curriculum.observe(step_outcome(group_of_kind(KINDS[0], 1, 0)))
    assert list(curriculum.kind_weights.values()) == pytest.approx([1 / 3] * 3)


def test_windows_are_bounded_and_other_groups_ignored():
    curriculum = UpperBound(kinds=KINDS, window=4)
    for _ in range(9):
        curriculum.observe(step_outcome(group_of_kind(KINDS[0], 1, 0)))
    assert len(curriculum.sizes[KINDS[0]]) == 4
    assert curriculum.counts[KINDS[0]] == 18
    curriculum.observe(
        step_outcome(group(1, task=Task("x", "", {}, {"kind": KINDS[0]}), provenance=Provenance.REPLAYED))
    )
    assert curriculum.counts[KINDS[0]] == 18


# ------------------------------------------------------------ stages


def test_craft_gui_worked_numbers():
    assert [stage_by_length(length) for length in (2, 3, 5, 8, 12)] == ["easy", "easy", "medium", "hard", "hard"]


def test_stage_ends_after_its_updates_or_when_it_is_mostly_solved():
    component = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=10, replay=0.2)
    assert {t.tags["kind"] for t in choose_tasks(component)} == {"product"}
    component.observe(step_outcome(group_of_kind("product", 0, 0), step=9))
    assert component.stage == 0
    component.observe(step_outcome(group_of_kind("product", 0, 0), step=10))
    assert component.stage == 1
    kinds = [t.tags["kind"] for t in choose_tasks(component, range(200))]
    assert 0.1 < kinds.count("product") / 200 < 0.3  # a fifth of the earlier stage
    early = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=1000)
    for step in range(3):
        early.observe(step_outcome(group_of_kind("product", 1, 1), step=step + 1))
    assert early.stage == 1
    restored = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=1000)
    restored.load_state(early.state())
    assert restored.metrics() == {"stage": 1.0}


def test_single_stage_is_random():
    component = StagedTasks(stages=[KINDS], max_updates_per_stage=1)
    assert {t.tags["kind"] for t in choose_tasks(component)} == set(KINDS)


# ------------------------------------------------------------ pools and lists


def test_pool_cycles_through_its_tasks():
    curriculum = Pool(size=5)
    indices = [curriculum.choose(SOURCE, 100, n, 0, derive_random(0)) for n in range(15)]
    assert [sorted(indices[k : k + 5]) for k in (0, 5, 10)] == [[100, 101, 102, 103, 104]] * 3
    assert indices[:5] != indices[5:10]


def test_subset_from_a_recipe_or_a_file_is_cycled(tmp_path):
    (tmp_path / "kept.json").write_text(json.dumps([3, 8]))
    for curriculum in (TaskSubset(indices=[3, 8]), TaskSubset(path=str(tmp_path / "kept.json"))):
        assert {curriculum.choose(SOURCE, 0, n, 0, derive_random(0)) for n in range(6)} == {3, 8}


def test_limr_worked_numbers():
    mean = [0.2, 0.4, 0.6, 0.8]
    for curve, score in ((mean, 1), ([1] * 4, 0), ([0] * 4, 0), ([0, 0.5, 0.5, 1], 0.9167)):
        opposite = [2 * m - c for m, c in zip(mean, curve, strict=True)]  # the mean is that of the paper's card
        assert learning_impact([curve, opposite])[0] == pytest.approx(score, abs=1e-4)
    assert learning_impact([[1, 1], [1, 1]]) == [0, 0]
    assert fill_gaps([None, 0.5, None, 1]) == [0.5, 0.5, 1, 1]
    assert fill_gaps([0.5, None, None]) is None


def test_arpo_gui_keeps_tasks_that_were_solved_once():
    assert solved_tasks([0, 3, 16, 0, 1]) == [1, 2, 4]


# ------------------------------------------------------------ generated tasks


def test_generated_tasks_pass_gates_are_bounded_and_sampled_at_their_fraction():
    component = GeneratedTasks(
        generator="support.small:harder", gates=["support.small:sensible"], generated_fraction=0.25, capacity=2
    )
    choices = [component.choose(SOURCE, 100, n, 0, derive_random("g", n)) for n in range(9)]
    assert choices == list(range(100, 109))  # nothing is generated yet
    component.observe(step_outcome(group_of_kind("product", 0, 0)))
    assert [task.id for task in component.pool] == ["harder/product"]
    assert component.metrics() == {"made": 1.0, "turned_away": 1.0}
    component.observe(step_outcome(group_of_kind("product", 0, 0)))
    assert len(component.pool) == 1  # known already
    for kind in KINDS:
        component.observe(step_outcome(group_of_kind(kind, 0, 0)))
    assert [task.id for task in component.pool] == [f"harder/{kind}" for kind in KINDS[1:]]
    selected = [component.choose(SOURCE, 0, n, 0, derive_random("g", n)) for n in range(400)]
    assert 60 < sum(isinstance(each, Task) for each in selected) < 140
    restored = GeneratedTasks(generator="support.small:harder", gates=["support.small:sensible"], capacity=2)
    restored.load_state(component.state())
    assert (restored.pool, restored.turned_away) == (component.pool, component.turned_away)


def test_generated_fraction_of_zero_is_only_the_source():
    component = GeneratedTasks(generator="support.small:harder", generated_fraction=0)
    component.observe(step_outcome(group_of_kind("product", 0, 0)))
    assert component.choose(SOURCE, 100, 7, 0, derive_random(0)) == 107


def test_generated_task_that_cannot_be_stored_is_named():
    with pytest.raises(TaskError, match="generated task odd: the task cannot be stored as JSON"):
        GeneratedTasks(generator="support.small:unkeepable").observe(step_outcome(group_of_kind("product", 0)))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: UpperBound(kinds=[]), "one or more"),
        (lambda: UpperBound(kinds=["a"], temperature=0), "above 0"),
        (lambda: StagedTasks(stages=[[]], max_updates_per_stage=1), "one or more values of the tag"),
        (lambda: StagedTasks(stages=[["a"]], max_updates_per_stage=0), "1 or more"),
        (lambda: StagedTasks(stages=[["a"]], max_updates_per_stage=1, replay=1), "below 1"),
        (lambda: Pool(size=0), "1 or more"),
        (lambda: GeneratedTasks(generator="support.small:harder", generated_fraction=2), "0 to 1"),
        (lambda: TaskSubset(), "set a list"),
        (lambda: TaskSubset(path="nowhere.json"), "nowhere.json"),
        (lambda: TaskSubset(indices=[-1]), "each 0 or more"),
    ],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()


def test_missing_tag_or_kind_is_named():
    with pytest.raises(TaskError, match='has no tag "colour"; its tags are difficulty, kind'):
        UpperBound(kinds=["red"], by="colour").choose(SOURCE, 0, 0, 0, derive_random(0))
    with pytest.raises(TaskError, match='none of 20000 sampled training tasks has kind "red"'):
        UpperBound(kinds=["red"]).choose(SOURCE, 0, 0, 0, derive_random(0))
