"""Tree advantages: the value of a turn is the mean outcome of its leaves."""

import pytest
import torch
from hypothesis import given

from support.batches import batches, call_with_columns, columns, integers, of
from whetstone.algorithms.advantages import group_relative, node_values, tree_ps


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


# root → a → (a1, a2), root → b → b1; leaves are trajectories
OWNER, NODES, GROUP = integers(0, 0, 1, 1, 2, 2), integers(0, 1, 0, 2, 3, 4), integers(0, 0, 0)
A, A1, A2, B, B1 = 0, 1, 3, 4, 5


def advantages_of_tree(form):
    advantages = tree_ps(of(1, 0, 0), GROUP, OWNER, NODES, form=form)
    assert advantages[0] == advantages[2]  # shared
    return [advantages[place].item() for place in (A, B, A1, A2, B1)]


def test_worked_node_values():
    value, parent, root = node_values(of(1, 0, 0), OWNER, NODES, GROUP)
    assert value.tolist() == near(0.5, 1, 0.5, 0, 0, 0)
    assert parent.tolist() == near(1 / 3, 0.5, 1 / 3, 0.5, 1 / 3, 0)
    assert root.tolist() == near(*[1 / 3] * 6)


def test_worked_numbers_of_the_three_forms():
    assert advantages_of_tree("parent") == near(0.166667, -0.333333, 0.5, -0.5, 0)
    assert advantages_of_tree("root_parent") == near(0.333333, -0.666667, 1.166667, -0.833333, -0.333333)
    assert advantages_of_tree("root_parent_scaled") == near(0.235702, -0.666667, 1.166667, -0.833333, -0.333333)


def test_square_roots_of_leaf_counts_have_full_precision():
    assert advantages_of_tree("root_parent_scaled")[0] == pytest.approx(1 / 3 / 2**0.5, rel=1e-12)


@pytest.mark.parametrize("form", ["root", "root_parent_scaled"])
def test_nodes_of_different_tasks_are_distinct(form):
    # ½ above and below the mean of their task; with the parent's, the root, twice
    advantages = tree_ps(of(1, 0, 0, 1), integers(0, 0, 1, 1), integers(0, 1, 2, 3), integers(7, 8, 7, 8), form=form)
    far = 0.5 if form == "root" else 1.0
    assert advantages.tolist() == near(far, -far, -far, far)


@given(batch=batches(forks=False))
def test_root_form_on_chains_is_the_mean_baseline_and_parent_form_is_zero_after_the_first_turn(batch):
    inputs = columns(batch)
    expected = group_relative(inputs["rewards"], inputs["group"], scale=False)[inputs["trajectory"]]
    assert torch.allclose(call_with_columns(tree_ps, inputs, form="root"), expected, atol=1e-9)
    parent = call_with_columns(tree_ps, inputs, form="parent")
    first = inputs["turn_index"] == 0
    assert (parent[~first] == 0).all()
    assert torch.allclose(parent[first], expected[first], atol=1e-9)
