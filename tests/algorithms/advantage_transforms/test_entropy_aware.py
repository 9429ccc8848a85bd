"""`entropy_aware` increases the weight of tokens with unusual entropy."""

import math

import pytest

from support.batches import of
from whetstone.algorithms.advantage_transforms import entropy_aware

A = of(0.707107, 0.707107, 0.707107, -0.707107, -0.707107)


def test_worked_numbers():
    # mean .8, std 0.886002
    result = entropy_aware(A, of(0.2, 0.5, 1.1, 2.2, 0))
    assert result.tolist() == pytest.approx([0.611337, 0.659222, 0.754992, -0.930571, -0.579413], abs=1e-5)


def test_without_weight_or_difference_nothing_changes():
    assert entropy_aware(A, of(0.2, 0.5, 1.1, 2.2, 0), weight=0.0).tolist() == A.tolist()
    assert entropy_aware(A, of(1, 1, 1, 1, 1)).tolist() == A.tolist()
    assert entropy_aware(of(), of()).tolist() == []


def test_unmeasured_entropy_is_excluded_from_the_mean():
    result = entropy_aware(of(*A.tolist(), 5.0), of(0.2, 0.5, 1.1, 2.2, 0, math.nan))
    assert result.tolist() == pytest.approx([0.611337, 0.659222, 0.754992, -0.930571, -0.579413, 5.0], abs=1e-5)


def test_sign_of_the_advantage_never_changes():
    entropies = of(*[1.0] * 99, 0.0)
    assert entropy_aware(of(*[1.0] * 100), entropies, weight=1.0).min().item() == 0


def test_rounding_noise_does_not_count_as_a_difference():
    assert entropy_aware(of(1, 1), of(1.0, 1.0 + 1e-10)).tolist() == [1, 1]
