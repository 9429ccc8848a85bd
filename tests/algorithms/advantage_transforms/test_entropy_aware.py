"""Unusual tokens count more."""

import math

import pytest

from tests_batches import of
from whetstone.algorithms.advantage_transforms import entropy_aware

A = of(0.707107, 0.707107, 0.707107, -0.707107, -0.707107)


def test_worked_numbers():
    # mean .8, std 0.886002
    found = entropy_aware(A, of(0.2, 0.5, 1.1, 2.2, 0))
    assert found.tolist() == pytest.approx([0.611337, 0.659222, 0.754992, -0.930571, -0.579413], abs=1e-5)


def test_without_weight_or_difference_nothing_changes():
    assert entropy_aware(A, of(0.2, 0.5, 1.1, 2.2, 0), weight=0.0).tolist() == A.tolist()
    assert entropy_aware(A, of(1, 1, 1, 1, 1)).tolist() == A.tolist()
    assert entropy_aware(of(), of()).tolist() == []


def test_an_entropy_nobody_measured_is_in_no_mean():
    found = entropy_aware(of(*A.tolist(), 5.0), of(0.2, 0.5, 1.1, 2.2, 0, math.nan))
    assert found.tolist() == pytest.approx([0.611337, 0.659222, 0.754992, -0.930571, -0.579413, 5.0], abs=1e-5)


def test_the_sign_never_turns():
    entropies = of(*[1.0] * 99, 0.0)
    assert entropy_aware(of(*[1.0] * 100), entropies, weight=1.0).min().item() == 0


def test_noise_of_the_arithmetic_is_no_difference():
    assert entropy_aware(of(1, 1), of(1.0, 1.0 + 1e-10)).tolist() == [1, 1]
