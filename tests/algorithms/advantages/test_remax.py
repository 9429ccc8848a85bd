"""ReMax: the reward of the greedy episode is the baseline."""

import pytest

from support.batches import of
from whetstone.algorithms.advantages import remax


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    assert remax(of(1, 0, 1), of(1, 1, 0)).tolist() == [0, -1, 1]


def test_task_with_a_failed_greedy_episode_gives_zero():
    assert remax(of(1, 1), of(float("nan"), 0)).tolist() == [0, 1]
