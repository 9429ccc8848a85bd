"""Weights of whole sequences."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.corrections import geometric, interpolated_old, sequence_masked, sequence_truncated, truncated

OLD, DRAWN, ONE = of(0.4, 0.05, 0.9).log(), of(0.5, 0.005, 0.88).log(), whole(0, 0, 0)


def test_the_product_is_cut_or_masked():
    assert sequence_truncated(OLD, DRAWN, ONE, high=100).tolist() == pytest.approx([8.181818] * 3, abs=1e-5)
    assert sequence_truncated(OLD, DRAWN, ONE).tolist() == [5, 5, 5]
    assert sequence_masked(OLD, DRAWN, ONE).tolist() == [0, 0, 0]
    assert sequence_masked(OLD, DRAWN, ONE, high=9).tolist() == pytest.approx([8.181818] * 3, abs=1e-5)


def test_the_geometric_mean_decides_for_the_sequence():
    # 2.015038
    assert geometric(OLD, DRAWN, ONE).tolist() == [0, 0, 0]
    assert geometric(OLD, DRAWN, ONE, width=1.1).tolist() == pytest.approx([0.8, 2, 1.022727], abs=1e-6)
    assert geometric(OLD, DRAWN, ONE, width=1.1, high=0.9).tolist() == pytest.approx([0.8, 0.9, 0.9])
    assert geometric(OLD, OLD, ONE).tolist() == [1, 1, 1]


def test_each_sequence_for_itself():
    found = sequence_truncated(OLD, DRAWN, whole(0, 1, 2), high=100)
    assert found.tolist() == pytest.approx([0.8, 10, 1.022727], abs=1e-6)
    assert truncated(OLD, DRAWN).tolist() == pytest.approx([0.8, 2, 1.022727], abs=1e-6)


def test_only_the_product_is_bounded_not_its_factors():
    old, drawn = of(-25, 0), of(0, -30)
    assert sequence_truncated(old, drawn, whole(0, 0), high=1e3).tolist() == pytest.approx([148.413159] * 2)
    assert sequence_truncated(of(0, 0), drawn - 5, whole(0, 0), high=1e12).tolist() == pytest.approx([485165195.4] * 2)
    with pytest.raises(ValueError, match="one sampler log-prob per token"):
        sequence_masked(of(1), of(1, 2), whole(0))


def test_what_nobody_drew_weighs_nothing():
    drawn = torch.where(torch.tensor([False, True, False]), torch.nan, DRAWN)
    assert sequence_truncated(OLD, drawn, ONE).tolist() == pytest.approx([0.8 * 0.9 / 0.88] * 3)


def test_the_policy_before_the_update_guessed_between_two_others():
    # drawn at version 3, now 7: three quarters of the way
    found = interpolated_old(of(0.33).log(), of(0.2).log(), whole(3), 7)
    assert found.exp().item() == pytest.approx(0.291168, abs=1e-6)
    assert interpolated_old(of(-1), of(-2), whole(5), 7).tolist() == [-1.5]  # two versions ago: half of the way
    assert interpolated_old(of(-1), of(-7), whole(0), 6).tolist() == pytest.approx([-2], rel=1e-12)  # five sixths
    fresh = interpolated_old(of(0.33, 0.33).log(), of(0.2, 0.2).log(), whole(7, 6), 7)
    assert torch.allclose(fresh, of(0.2, 0.2).log())
    assert interpolated_old(of(-1), of(-2), whole(-1), 7).tolist() == [-2]  # nobody drew it


def test_a_guess_has_the_width_of_what_was_drawn_and_no_gradient():
    now = torch.tensor([-1.0], requires_grad=True)
    found = interpolated_old(now, torch.tensor([-2.0]), whole(3), 7)
    assert found.dtype is torch.float32
    assert not found.requires_grad
