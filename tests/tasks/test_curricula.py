"""Which task comes next: a function of what was heard and of the group's own chance."""

import json

import pytest

from tests_episodes import group, heard, path
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random
from whetstone.tasks import Arithmetic
from whetstone.tasks.curricula import Chosen, GeneratedTasks, Pool, StagedTasks, UpperBound
from whetstone.tasks.curricula.chosen import filled, learning_impact, solvable
from whetstone.tasks.curricula.stages import split_of, stage_of
from whetstone.tasks.curricula.ucb import upper_bounds, weights_of
from whetstone.trajectory import Group, Provenance, Task

SOURCE = Arithmetic()
KINDS = ["product", "product_then_sum", "sum_then_product"]


def chosen(made, numbers=range(40), step=0, first=100):
    found = [made.choose(SOURCE, first, n, step, derive_random("c", n)) for n in numbers]
    assert all(index >= first for index in found)
    return [SOURCE.task(index) for index in found]


def of(kind, *rewards):
    return group(*rewards, task=Task(kind, "", {}, {"kind": kind}))


# ------------------------------------------------------------ upper bounds


def test_dump_worked_numbers():
    bounds = upper_bounds([0.8, 0.5, 0.1], [300, 100, 10])
    assert bounds == pytest.approx([0.99998, 0.84522, 1.14608], abs=1e-5)
    assert weights_of(bounds, 0.1) == pytest.approx([0.18105, 0.03852, 0.78043], abs=1e-5)


def test_it_begins_evenly_and_learns_what_teaches():
    made = UpperBound(kinds=KINDS)
    assert made.weights == dict.fromkeys(KINDS, 1 / 3)
    assert {task.tags["kind"] for task in chosen(made)} == set(KINDS)
    for step in range(60):
        groups = [of(kind, 1, 0, 1, 0) for kind in KINDS]
        named = [Group(g.task, tuple(path(f"{g.task.id}/{t.id}", 1) for t in g.trajectories)) for g in groups]
        sizes = {t.id: float(g.task.id == KINDS[1]) for g in named for t in g.trajectories}
        made.observe(heard(*named, step=step + 1, advantages=sizes))
    assert made.weights[KINDS[1]] > 0.9
    assert sum(task.tags["kind"] == KINDS[1] for task in chosen(made)) > 30
    again = UpperBound(kinds=KINDS)
    again.load_state(made.state())
    assert again.weights == made.weights
    assert [t.id for t in chosen(again)] == [t.id for t in chosen(made)]


def test_without_end_to_the_temperature_it_draws_evenly():
    made = UpperBound(kinds=KINDS, temperature=1e9)
    made.observe(heard(of(KINDS[0], 1, 0)))
    assert list(made.weights.values()) == pytest.approx([1 / 3] * 3)


def test_windows_are_bounded_and_what_came_from_elsewhere_is_not_heard():
    made = UpperBound(kinds=KINDS, window=4)
    for _ in range(9):
        made.observe(heard(of(KINDS[0], 1, 0)))
    assert len(made.sizes[KINDS[0]]) == 4
    assert made.counts[KINDS[0]] == 18
    made.observe(heard(group(1, task=Task("x", "", {}, {"kind": KINDS[0]}), provenance=Provenance.REPLAYED)))
    assert made.counts[KINDS[0]] == 18


# ------------------------------------------------------------ stages


def test_craft_gui_and_tool_star_worked_numbers():
    assert [stage_of(length) for length in (2, 3, 5, 8, 12)] == ["easy", "easy", "medium", "hard", "hard"]
    cases = [(True, True), (True, False), (False, True), (False, False)]
    assert [split_of(*case) for case in cases] == ["imitate_plain", "imitate_plain", "imitate_tool", "reinforce"]


def test_a_stage_ends_after_its_updates_or_when_it_is_mostly_solved():
    component = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=10, replay=0.2)
    assert {t.tags["kind"] for t in chosen(component)} == {"product"}
    component.observe(heard(of("product", 0, 0), step=9))
    assert component.stage == 0
    component.observe(heard(of("product", 0, 0), step=10))
    assert component.stage == 1
    kinds = [t.tags["kind"] for t in chosen(component, range(200))]
    assert 0.1 < kinds.count("product") / 200 < 0.3  # a fifth of the earlier stage
    early = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=1000)
    for step in range(3):
        early.observe(heard(of("product", 1, 1), step=step + 1))
    assert early.stage == 1
    restored = StagedTasks(stages=[["product"], ["sum_then_product"]], max_updates_per_stage=1000)
    restored.load_state(early.state())
    assert restored.metrics() == {"stage": 1.0}


def test_one_stage_draws_at_random():
    component = StagedTasks(stages=[KINDS], max_updates_per_stage=1)
    assert {t.tags["kind"] for t in chosen(component)} == set(KINDS)


# ------------------------------------------------------------ pools and lists


def test_a_pool_goes_round_each_task_once():
    made = Pool(size=5)
    indices = [made.choose(SOURCE, 100, n, 0, derive_random(0)) for n in range(15)]
    assert [sorted(indices[k : k + 5]) for k in (0, 5, 10)] == [[100, 101, 102, 103, 104]] * 3
    assert indices[:5] != indices[5:10]


def test_a_list_is_gone_round_from_a_recipe_or_a_file(tmp_path):
    (tmp_path / "kept.json").write_text(json.dumps([3, 8]))
    for made in (Chosen(indices=[3, 8]), Chosen(path=str(tmp_path / "kept.json"))):
        assert {made.choose(SOURCE, 0, n, 0, derive_random(0)) for n in range(6)} == {3, 8}


def test_limr_worked_numbers():
    mean = [0.2, 0.4, 0.6, 0.8]
    for curve, score in ((mean, 1), ([1] * 4, 0), ([0] * 4, 0), ([0, 0.5, 0.5, 1], 0.9167)):
        opposite = [2 * m - c for m, c in zip(mean, curve, strict=True)]  # so that the mean is what the card says
        assert learning_impact([curve, opposite])[0] == pytest.approx(score, abs=1e-4)
    assert learning_impact([[1, 1], [1, 1]]) == [0, 0]
    assert filled([None, 0.5, None, 1]) == [0.5, 0.5, 1, 1]
    assert filled([0.5, None, None]) is None


def test_arpo_gui_keeps_what_was_solved_once():
    assert solvable([0, 3, 16, 0, 1]) == [1, 2, 4]


# ------------------------------------------------------------ made tasks


def test_made_tasks_pass_gates_are_bounded_and_drawn_as_often_as_asked():
    component = GeneratedTasks(
        generator="tests_small:harder", gates=["tests_small:sensible"], generated_fraction=0.25, capacity=2
    )
    choices = [component.choose(SOURCE, 100, n, 0, derive_random("g", n)) for n in range(9)]
    assert choices == list(range(100, 109))  # nothing is made yet
    component.observe(heard(of("product", 0, 0)))
    assert [task.id for task in component.pool] == ["harder/product"]
    assert component.metrics() == {"made": 1.0, "turned_away": 1.0}
    component.observe(heard(of("product", 0, 0)))
    assert len(component.pool) == 1  # known already
    for kind in KINDS:
        component.observe(heard(of(kind, 0, 0)))
    assert [task.id for task in component.pool] == [f"harder/{kind}" for kind in KINDS[1:]]
    drawn = [component.choose(SOURCE, 0, n, 0, derive_random("g", n)) for n in range(400)]
    assert 60 < sum(isinstance(each, Task) for each in drawn) < 140
    again = GeneratedTasks(generator="tests_small:harder", gates=["tests_small:sensible"], capacity=2)
    again.load_state(component.state())
    assert (again.pool, again.turned_away) == (component.pool, component.turned_away)


def test_a_share_of_nothing_is_the_source_alone():
    component = GeneratedTasks(generator="tests_small:harder", generated_fraction=0)
    component.observe(heard(of("product", 0, 0)))
    assert component.choose(SOURCE, 100, 7, 0, derive_random(0)) == 107


def test_a_made_task_that_cannot_be_kept_is_named():
    with pytest.raises(TaskError, match="made task odd: cannot be kept as JSON"):
        GeneratedTasks(generator="tests_small:unkeepable").observe(heard(of("product", 0)))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: UpperBound(kinds=[]), "one or more"),
        (lambda: UpperBound(kinds=["a"], temperature=0), "above 0"),
        (lambda: StagedTasks(stages=[[]], max_updates_per_stage=1), "one value of the tag or more"),
        (lambda: StagedTasks(stages=[["a"]], max_updates_per_stage=0), "one update or more"),
        (lambda: StagedTasks(stages=[["a"]], max_updates_per_stage=1, replay=1), "below 1"),
        (lambda: Pool(size=0), "one task or more"),
        (lambda: GeneratedTasks(generator="tests_small:harder", generated_fraction=2), "0 to 1"),
        (lambda: Chosen(), "either a list"),
        (lambda: Chosen(path="nowhere.json"), "nowhere.json"),
        (lambda: Chosen(indices=[-1]), "zero or more"),
    ],
)
def test_options_that_cannot_be(made, said):
    with pytest.raises(OptionError, match=said):
        made()


def test_a_tag_or_kind_that_is_not_there_is_named():
    with pytest.raises(TaskError, match='has no tag "colour"; it has difficulty, kind'):
        UpperBound(kinds=["red"], by="colour").choose(SOURCE, 0, 0, 0, derive_random(0))
    with pytest.raises(TaskError, match='none is of kind "red"'):
        UpperBound(kinds=["red"]).choose(SOURCE, 0, 0, 0, derive_random(0))
