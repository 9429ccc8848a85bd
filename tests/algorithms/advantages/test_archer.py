"""The worked numbers of twin critics with slow copies."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import archer


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def said(rewards, last=(0.0, 0.0), **columns):
    count = len(rewards)
    names = ["action_values", "twin_action_values", "values", "twin_values"]
    given = {name: of(*columns.get(name, [0.0] * count)) for name in [*names, *(f"slow_{n}" for n in names)]}
    return archer(of(*rewards), whole(*[0] * count), *given.values(), of(last[0]), of(last[1]))


def test_each_critic_learns_from_its_own_twin():
    # r 0, V̄ of the next state .62 and .58, γ .95
    found = said([0, 1], slow_values=[0, 0.62], slow_twin_values=[0, 0.58])
    assert found.targets["action_values"].tolist() == near(0.589, 1)
    assert found.targets["twin_action_values"].tolist() == near(0.551, 1)


def test_an_episode_that_was_cut_goes_on_in_the_target():
    found = said([0.1], last=(0.7, 0.8))
    assert found.targets["action_values"].tolist() == near(0.1 + 0.95 * 0.7)
    assert found.targets["twin_action_values"].tolist() == near(0.1 + 0.95 * 0.8)


def test_states_learn_from_the_slow_value_of_the_action():
    found = said([0], slow_action_values=[0.55], slow_twin_action_values=[0.45])
    assert found.targets["values"].tolist() == [0.55]
    assert found.targets["twin_values"].tolist() == [0.45]


def test_the_smaller_of_each_pair_makes_the_advantage():
    found = said([0], action_values=[0.70], twin_action_values=[0.66], values=[0.55], twin_values=[0.50])
    assert found.advantages.tolist() == near(0.16)
