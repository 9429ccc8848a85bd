"""The mean of what came of a turn."""

import pytest
import torch
from hypothesis import given

from tests_batches import asked, batches, columns, of, whole
from whetstone.algorithms.advantages import group_relative, node_values, tree_ps


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


# root → a → (a1, a2), root → b → b1; leaves are trajectories
OWNER, NODES, GROUP = whole(0, 0, 1, 1, 2, 2), whole(0, 1, 0, 2, 3, 4), whole(0, 0, 0)
A, A1, A2, B, B1 = 0, 1, 3, 4, 5


def said(form):
    found = tree_ps(of(1, 0, 0), GROUP, OWNER, NODES, form=form)
    assert found[0] == found[2]  # shared
    return [found[place].item() for place in (A, B, A1, A2, B1)]


def test_values():
    value, parent, root = node_values(of(1, 0, 0), OWNER, NODES, GROUP)
    assert value.tolist() == near(0.5, 1, 0.5, 0, 0, 0)
    assert parent.tolist() == near(1 / 3, 0.5, 1 / 3, 0.5, 1 / 3, 0)
    assert root.tolist() == near(*[1 / 3] * 6)


def test_the_three_forms():
    assert said("parent") == near(0.166667, -0.333333, 0.5, -0.5, 0)
    assert said("root_parent") == near(0.333333, -0.666667, 1.166667, -0.833333, -0.333333)
    assert said("root_parent_scaled") == near(0.235702, -0.666667, 1.166667, -0.833333, -0.333333)


def test_square_roots_of_leaves_are_taken_in_the_whole_width():
    assert said("root_parent_scaled")[0] == pytest.approx(1 / 3 / 2**0.5, rel=1e-12)


@pytest.mark.parametrize("form", ["root", "root_parent_scaled"])
def test_nodes_of_different_tasks_are_never_the_same(form):
    # ½ above and below the mean of their own task; with the parent's, the root, twice
    found = tree_ps(of(1, 0, 0, 1), whole(0, 0, 1, 1), whole(0, 1, 2, 3), whole(7, 8, 7, 8), form=form)
    far = 0.5 if form == "root" else 1.0
    assert found.tolist() == near(far, -far, -far, far)


@given(batch=batches(forks=False))
def test_on_chains_the_root_form_is_the_mean_baseline_and_parents_say_nothing_below_the_first_turn(batch):
    found = columns(batch)
    expected = group_relative(found["rewards"], found["group"], scale=False)[found["trajectory"]]
    assert torch.allclose(asked(tree_ps, found, form="root"), expected, atol=1e-9)
    parent = asked(tree_ps, found, form="parent")
    first = found["turn_index"] == 0
    assert (parent[~first] == 0).all()
    assert torch.allclose(parent[first], expected[first], atol=1e-9)
