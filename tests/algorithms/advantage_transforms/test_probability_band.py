"""`probability_band` trains on stored turns whose probability under the policy is neither too high nor too low."""

import torch

from support.batches import of
from whetstone.algorithms.advantage_transforms import probability_band


def test_worked_numbers():
    # mean log-probs −.05, −.2, −.9: probabilities .9512, .8187 and .4066; only the second is in (.5, .95]
    turn = torch.tensor([0, 0, 1, 2])
    result = probability_band(of(1, 1, 1), of(0.0, -0.1, -0.2, -0.9), turn, torch.tensor([0, 0, 0]), of(1))
    assert result.tolist() == [0, 1, 0]


def test_freshly_sampled_turns_stay():
    result = probability_band(of(2, 3), of(-5.0, -5.0), torch.tensor([0, 1]), torch.tensor([0, 1]), of(0, 1))
    assert result.tolist() == [2, 0]


def test_band_includes_the_upper_bound_and_excludes_the_lower():
    one, turn = of(1), torch.tensor([0])
    assert probability_band(one, of(0.0), turn, turn, one, high=1.0).tolist() == [1]  # p = 1
    assert probability_band(one, of(0.0), turn, turn, one, low=1.0, high=2.0).tolist() == [0]
