"""ArCHer: worked numbers of twin critics with target networks."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import archer


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def estimate(rewards, last=(0.0, 0.0), **columns):
    count = len(rewards)
    names = ["action_values", "twin_action_values", "values", "twin_values"]
    column_values = {name: of(*columns.get(name, [0.0] * count)) for name in [*names, *(f"slow_{n}" for n in names)]}
    return archer(of(*rewards), integers(*[0] * count), *column_values.values(), of(last[0]), of(last[1]))


def test_each_critic_is_trained_on_its_own_twin():
    # r 0, V̄ of the next state .62 and .58, γ .95
    result = estimate([0, 1], slow_values=[0, 0.62], slow_twin_values=[0, 0.58])
    assert result.targets["action_values"].tolist() == near(0.589, 1)
    assert result.targets["twin_action_values"].tolist() == near(0.551, 1)


def test_truncated_episode_bootstraps_in_the_target():
    result = estimate([0.1], last=(0.7, 0.8))
    assert result.targets["action_values"].tolist() == near(0.1 + 0.95 * 0.7)
    assert result.targets["twin_action_values"].tolist() == near(0.1 + 0.95 * 0.8)


def test_state_values_are_trained_on_target_action_values():
    result = estimate([0], slow_action_values=[0.55], slow_twin_action_values=[0.45])
    assert result.targets["values"].tolist() == [0.55]
    assert result.targets["twin_values"].tolist() == [0.45]


def test_advantage_uses_the_minimum_of_each_pair():
    result = estimate([0], action_values=[0.70], twin_action_values=[0.66], values=[0.55], twin_values=[0.50])
    assert result.advantages.tolist() == near(0.16)
