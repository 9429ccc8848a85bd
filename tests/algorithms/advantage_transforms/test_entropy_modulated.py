"""`entropy_modulated` increases the weight of confident turns."""

import math

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.advantage_transforms import entropy_modulated

A, OWNER, GROUP = of(0.707107, 0.707107, -0.707107, -0.707107), integers(0, 0, 1, 1), integers(0, 0)


def test_worked_numbers():
    result = entropy_modulated(A, of(0.2, 0.8, 0.5, 1.0), OWNER, GROUP)
    assert result.tolist() == pytest.approx([1.119046, 0.528600, -0.769108, -0.411674], abs=1e-5)


def test_equal_entropies_change_nothing():
    assert torch.equal(entropy_modulated(A, of(0.5, 0.5, 0.5, 0.5), OWNER, GROUP), A)
    assert torch.equal(entropy_modulated(A, of(0.50, 0.55, 0.50, 0.59), OWNER, GROUP), A)  # within the minimum range


def test_weights_average_one_and_exclude_turns_without_tokens():
    result = entropy_modulated(of(1, 1, 1, 5), of(0.2, 0.8, 0.5, math.nan), OWNER, GROUP)
    assert result[:3].mean().item() == pytest.approx(1)
    assert result[3].item() == 5


def test_each_task_is_modulated_separately():
    entropies = of(0.2, 0.8, 5.0, 9.0)
    together = entropy_modulated(A, entropies, OWNER, integers(0, 1))
    alone = entropy_modulated(A[:2], entropies[:2], integers(0, 0), integers(0))
    assert torch.allclose(together[:2], alone)


def test_range_equal_to_the_minimum_is_used_and_zero_range_does_not_divide():
    # h 0 and 1: weights 1 and e⁻¹ over their mean
    result = entropy_modulated(of(1, 1), of(0.25, 0.5), integers(0, 1), integers(0, 0), min_range=0.25)
    assert result.tolist() == pytest.approx([2 / (1 + math.exp(-1)), 2 * math.exp(-1) / (1 + math.exp(-1))])
    assert entropy_modulated(of(1, 2), of(0.5, 0.5), integers(0, 1), integers(0, 0), min_range=0.0).tolist() == [1, 2]
