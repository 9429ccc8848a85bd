"""Sequence-level importance weights."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.importance_sampling import (
    geometric,
    interpolated_old,
    sequence_masked,
    sequence_truncated,
    truncated,
)

OLD, DRAWN, ONE = of(0.4, 0.05, 0.9).log(), of(0.5, 0.005, 0.88).log(), integers(0, 0, 0)


def test_product_is_truncated_or_masked():
    assert sequence_truncated(OLD, DRAWN, ONE, high=100).tolist() == pytest.approx([8.181818] * 3, abs=1e-5)
    assert sequence_truncated(OLD, DRAWN, ONE).tolist() == [5, 5, 5]
    assert sequence_masked(OLD, DRAWN, ONE).tolist() == [0, 0, 0]
    assert sequence_masked(OLD, DRAWN, ONE, high=9).tolist() == pytest.approx([8.181818] * 3, abs=1e-5)


def test_geometric_mean_masks_the_whole_sequence():
    # 2.015038
    assert geometric(OLD, DRAWN, ONE).tolist() == [0, 0, 0]
    assert geometric(OLD, DRAWN, ONE, width=1.1).tolist() == pytest.approx([0.8, 2, 1.022727], abs=1e-6)
    assert geometric(OLD, DRAWN, ONE, width=1.1, high=0.9).tolist() == pytest.approx([0.8, 0.9, 0.9])
    assert geometric(OLD, OLD, ONE).tolist() == [1, 1, 1]


def test_sequences_are_weighted_separately():
    weights = sequence_truncated(OLD, DRAWN, integers(0, 1, 2), high=100)
    assert weights.tolist() == pytest.approx([0.8, 10, 1.022727], abs=1e-6)
    assert truncated(OLD, DRAWN).tolist() == pytest.approx([0.8, 2, 1.022727], abs=1e-6)


def test_bound_applies_to_the_product_and_not_to_its_factors():
    old, sampled = of(-25, 0), of(0, -30)
    assert sequence_truncated(old, sampled, integers(0, 0), high=1e3).tolist() == pytest.approx([148.413159] * 2)
    assert sequence_truncated(of(0, 0), sampled - 5, integers(0, 0), high=1e12).tolist() == pytest.approx(
        [485165195.4] * 2
    )
    with pytest.raises(ValueError, match="old and sampler log-probs must have the same shape"):
        sequence_masked(of(1), of(1, 2), integers(0))


def test_unsampled_tokens_do_not_count():
    sampled = torch.where(torch.tensor([False, True, False]), torch.nan, DRAWN)
    assert sequence_truncated(OLD, sampled, ONE).tolist() == pytest.approx([0.8 * 0.9 / 0.88] * 3)


def test_interpolated_old_log_probs():
    # sampled at version 3, now 7: three quarters of the difference
    interpolated = interpolated_old(of(0.33).log(), of(0.2).log(), integers(3), 7)
    assert interpolated.exp().item() == pytest.approx(0.291168, abs=1e-6)
    assert interpolated_old(of(-1), of(-2), integers(5), 7).tolist() == [
        -1.5
    ]  # two versions ago: half of the difference
    assert interpolated_old(of(-1), of(-7), integers(0), 6).tolist() == pytest.approx([-2], rel=1e-12)  # five sixths
    fresh = interpolated_old(of(0.33, 0.33).log(), of(0.2, 0.2).log(), integers(7, 6), 7)
    assert torch.allclose(fresh, of(0.2, 0.2).log())
    assert interpolated_old(of(-1), of(-2), integers(-1), 7).tolist() == [-2]  # not sampled


def test_interpolated_log_probs_have_the_precision_of_the_sampled_and_no_gradient():
    now = torch.tensor([-1.0], requires_grad=True)
    interpolated = interpolated_old(now, torch.tensor([-2.0]), integers(3), 7)
    assert interpolated.dtype is torch.float32
    assert not interpolated.requires_grad
