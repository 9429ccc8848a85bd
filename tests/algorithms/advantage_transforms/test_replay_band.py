"""Stored steps are learned from where the policy is neither certain nor at a loss."""

import torch

from tests_batches import of
from whetstone.algorithms.advantage_transforms import probability_band


def test_worked_numbers():
    # mean log-probs −.05, −.2, −.9: probabilities .9512, .8187 and .4066; only the second lies in (.5, .95]
    turn = torch.tensor([0, 0, 1, 2])
    result = probability_band(of(1, 1, 1), of(0.0, -0.1, -0.2, -0.9), turn, torch.tensor([0, 0, 0]), of(1))
    assert result.tolist() == [0, 1, 0]


def test_what_was_just_drawn_stays():
    result = probability_band(of(2, 3), of(-5.0, -5.0), torch.tensor([0, 1]), torch.tensor([0, 1]), of(0, 1))
    assert result.tolist() == [2, 0]


def test_the_upper_bound_is_in_the_band_and_the_lower_is_not():
    one, turn = of(1), torch.tensor([0])
    assert probability_band(one, of(0.0), turn, turn, one, high=1.0).tolist() == [1]  # p = 1
    assert probability_band(one, of(0.0), turn, turn, one, low=1.0, high=2.0).tolist() == [0]
