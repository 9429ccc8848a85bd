"""`gated` adds step rewards only if the outcome is above a threshold."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.shaping import gated, gated_sum


def test_worked_numbers():
    steps, owner = of(0.1, 0.2, 0.1, 0.1, 0.2, 0.1), integers(0, 0, 0, 1, 1, 1)
    rewards = gated(of(1, 0), steps, owner)
    assert (1 + rewards[:3].sum()).item() == pytest.approx(1.4)
    assert rewards[3:].tolist() == [0, 0, 0]


def test_threshold_is_exclusive():
    assert gated(of(0.5), of(1), integers(0)).tolist() == [0]


def test_every_higher_tier_must_pass():
    tiers = torch.stack([of(1, 1, 0), of(1, 0, 1), of(0.4, 0.4, 0.4)])
    rewards = gated_sum(tiers, [0.5, 0.5], [0.5, 1.0])
    assert rewards.tolist() == pytest.approx([1 + 0.5 + 0.4, 1, 0])


def test_one_threshold_between_two_tiers():
    for thresholds, weights in (([], []), ([0.5], []), ([], [1.0]), ([0.5, 0.5], [1.0, 1.0])):
        with pytest.raises(ValueError, match="2 tiers need 1"):
            gated_sum(torch.zeros(2, 1), thresholds, weights)
    # the threshold is exclusive
    assert gated_sum(torch.tensor([[1.0, 2.0], [4.0, 4.0]]), [1.0], [0.5]).tolist() == [1, 4]


def test_tiers_are_summed_in_full_precision():
    tiers = torch.tensor([[0.1], [0.7]])
    rewards = gated_sum(tiers, [0.0], [0.3])
    assert rewards.dtype is torch.float64
    assert rewards.item() == tiers[0].item() + 0.3 * tiers[1].item()


def test_weights_of_tiers_are_not_normalized():
    # 1 + .5 · 4, for integer tiers too
    assert gated_sum(torch.tensor([[1], [4]]), [0.0], [0.5]).tolist() == [3]
