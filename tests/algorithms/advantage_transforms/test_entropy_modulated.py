"""Confident turns count more."""

import math

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.advantage_transforms import entropy_modulated

A, OWNER, GROUP = of(0.707107, 0.707107, -0.707107, -0.707107), whole(0, 0, 1, 1), whole(0, 0)


def test_worked_numbers():
    found = entropy_modulated(A, of(0.2, 0.8, 0.5, 1.0), OWNER, GROUP)
    assert found.tolist() == pytest.approx([1.119046, 0.528600, -0.769108, -0.411674], abs=1e-5)


def test_equal_entropies_change_nothing():
    assert torch.equal(entropy_modulated(A, of(0.5, 0.5, 0.5, 0.5), OWNER, GROUP), A)
    assert torch.equal(entropy_modulated(A, of(0.50, 0.55, 0.50, 0.59), OWNER, GROUP), A)  # within the least range


def test_weights_average_one_and_turns_without_tokens_are_in_no_set():
    found = entropy_modulated(of(1, 1, 1, 5), of(0.2, 0.8, 0.5, math.nan), OWNER, GROUP)
    assert found[:3].mean().item() == pytest.approx(1)
    assert found[3].item() == 5


def test_each_task_for_itself():
    entropies = of(0.2, 0.8, 5.0, 9.0)
    together = entropy_modulated(A, entropies, OWNER, whole(0, 1))
    alone = entropy_modulated(A[:2], entropies[:2], whole(0, 0), whole(0))
    assert torch.allclose(together[:2], alone)


def test_a_range_of_the_least_is_wide_enough_and_no_range_at_all_divides_by_nothing():
    # h 0 and 1: weights 1 and e⁻¹ over their mean
    result = entropy_modulated(of(1, 1), of(0.25, 0.5), whole(0, 1), whole(0, 0), min_range=0.25)
    assert result.tolist() == pytest.approx([2 / (1 + math.exp(-1)), 2 * math.exp(-1) / (1 + math.exp(-1))])
    assert entropy_modulated(of(1, 2), of(0.5, 0.5), whole(0, 1), whole(0, 0), min_range=0.0).tolist() == [1, 2]
