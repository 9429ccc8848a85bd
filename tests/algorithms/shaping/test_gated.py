"""Step rewards count only behind an open gate."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.shaping import gated, gated_sum


def test_worked_numbers():
    steps, owner = of(0.1, 0.2, 0.1, 0.1, 0.2, 0.1), whole(0, 0, 0, 1, 1, 1)
    found = gated(of(1, 0), steps, owner)
    assert (1 + found[:3].sum()).item() == pytest.approx(1.4)
    assert found[3:].tolist() == [0, 0, 0]


def test_the_gate_is_strict():
    assert gated(of(0.5), of(1), whole(0)).tolist() == [0]


def test_every_higher_tier_must_pass():
    tiers = torch.stack([of(1, 1, 0), of(1, 0, 1), of(0.4, 0.4, 0.4)])
    found = gated_sum(tiers, [0.5, 0.5], [0.5, 1.0])
    assert found.tolist() == pytest.approx([1 + 0.5 + 0.4, 1, 0])


def test_one_threshold_between_two_tiers():
    for thresholds, weights in (([], []), ([0.5], []), ([], [1.0]), ([0.5, 0.5], [1.0, 1.0])):
        with pytest.raises(ValueError, match="2 tiers have 1"):
            gated_sum(torch.zeros(2, 1), thresholds, weights)
    # at the threshold it is not above it
    assert gated_sum(torch.tensor([[1.0, 2.0], [4.0, 4.0]]), [1.0], [0.5]).tolist() == [1, 4]


def test_tiers_are_summed_in_the_whole_width():
    tiers = torch.tensor([[0.1], [0.7]])
    found = gated_sum(tiers, [0.0], [0.3])
    assert found.dtype is torch.float64
    assert found.item() == tiers[0].item() + 0.3 * tiers[1].item()


def test_tiers_that_count_are_weighed_as_they_are():
    # 1 + .5 · 4, whatever the tiers are made of
    assert gated_sum(torch.tensor([[1], [4]]), [0.0], [0.5]).tolist() == [3]
