"""Paired tests: worked numbers, enumeration and false positive rates."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from whetstone.evaluation.significance import compare_pairs, correct_p_values, sign_flip_test, t_interval


def test_worked_numbers_of_holm():
    assert correct_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert correct_p_values([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    corrected = correct_p_values([0.01, math.nan, 0.02])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert correct_p_values([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_values_are_larger_and_in_the_same_order(values):
    corrected = correct_p_values(values)
    assert all(b >= a - 1e-12 for a, b in zip(values, corrected, strict=True))
    order = sorted(range(len(values)), key=lambda k: values[k])
    assert all(corrected[a] <= corrected[b] + 1e-12 for a, b in itertools.pairwise(order))


def test_t_interval_equals_that_of_scipy():
    a, b = np.array([0.7, 0.8, 0.75]), np.array([0.5, 0.65, 0.6])
    low, high, p = t_interval(list(map(float, a - b)))
    expected = ttest_rel(a, b)
    assert p == pytest.approx(expected.pvalue)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval()))
    assert all(map(math.isnan, t_interval([0.1])))
    assert t_interval([0.0, 0.0]) == (0, 0, 1)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=2, max_size=8))
def test_sign_flip_test_equals_enumeration(differences):
    moved = [d for d in differences if d]
    if len(moved) < 2:
        assert sign_flip_test(np.array(differences)) == 1
        return
    seen = abs(fmean(moved))
    every = [
        abs(fmean(s * d for s, d in zip(each, moved, strict=True)))
        for each in itertools.product((1, -1), repeat=len(moved))
    ]
    assert sign_flip_test(np.array(differences)) == pytest.approx(
        fmean(value >= seen - 1e-9 for value in every), abs=1e-9
    )


def outcomes(share, seeds=3, tasks=40, start=0):
    draw = np.random.default_rng(start)
    return {seed: {f"t{k}": float(draw.random() < share) for k in range(tasks)} for seed in range(seeds)}


def test_worked_pair_of_contenders():
    (pair,) = compare_pairs({"good": outcomes(0.9), "bad": outcomes(0.2, start=9)})
    assert pair.difference > 0.5
    assert pair.interval[0] > 0
    assert max(pair.p_seeds, pair.p_tasks) < 0.05
    assert pair.effect > 0.8
    assert (pair.seeds, pair.tasks) == (3, 40)
    (same,) = compare_pairs({"a": outcomes(0.5), "b": outcomes(0.5)})
    assert (same.difference, same.p_seeds, same.p_tasks, same.effect) == (0, 1, 1, 0)
    assert len(compare_pairs({name: outcomes(0.5, start=k) for k, name in enumerate("abcd")})) == 6


def test_only_common_seeds_and_tasks_are_compared():
    one, other = outcomes(0.5), outcomes(0.5, start=1)
    del other[2]
    other[0].pop("t0")
    (pair,) = compare_pairs({"a": one, "b": other})
    assert (pair.seeds, pair.tasks) == (2, 39)
    with pytest.raises(ValueError, match="no task in common"):
        compare_pairs({"a": {0: {"x": 1.0}}, "b": {0: {"y": 1.0}}})


@pytest.mark.slow
def test_false_positive_rate_is_at_most_the_level():
    draw = np.random.default_rng(3)
    called = []
    for _ in range(300):
        differences = draw.choice([-1.0, 0.0, 1.0], size=60, p=[0.2, 0.6, 0.2])
        called.append(sign_flip_test(differences) < 0.05)
    assert fmean(called) < 0.09
