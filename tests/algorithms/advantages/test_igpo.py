"""IGPO: information gain as turn rewards."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.advantages import group_relative, igpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


BELIEFS, OWNER, GROUP = of(0.10, 0.30, 0.60, 0.10, 0.05, 0.20), integers(0, 0, 0, 1, 1, 1), integers(0, 0)


def advantages_of_batch(**options):
    return igpo(of(1, 0), BELIEFS, OWNER, GROUP, **options).tolist()


def test_gains_and_outcomes_are_normalized_separately():
    # gains .2 .3, −.05 .15
    assert advantages_of_batch() == near(2.065829, 1.726148, 0.707106, -2.065829, -0.707106, -0.707106)
    assert advantages_of_batch(discount=0.5) == near(1.025978, 1.372595, 0.707106, -1.535500, -0.353553, -0.707106)


def test_pooled_and_no_normalization():
    assert advantages_of_batch(norm="pooled") == near(1.834074, 2.008748, 1.921411, -1.834074, -1.004374, -0.698695)
    assert advantages_of_batch(norm="none") == near(1.5, 1.3, 1, 0.1, 0.15, 0)


def test_without_gains_it_is_grpo():
    flat = igpo(of(1, 0), torch.full((6,), 0.3, dtype=torch.float64), OWNER, GROUP)
    assert flat.tolist() == near(*group_relative(of(1, 0), GROUP)[OWNER].tolist())


def test_episode_of_one_turn_has_only_its_outcome():
    assert igpo(of(1, 0), of(0.9, 0.1), integers(0, 1), GROUP).tolist() == near(0.707106, -0.707106)
