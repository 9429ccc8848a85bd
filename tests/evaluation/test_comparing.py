"""Paired tests that hold what they promise."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from whetstone.evaluation.comparing import holm, paired, signs, student


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    found = holm([0.01, math.nan, 0.02])
    assert found[0] == pytest.approx(0.02)
    assert math.isnan(found[1])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_values_are_larger_and_in_the_same_order(values):
    found = holm(values)
    assert all(b >= a - 1e-12 for a, b in zip(values, found, strict=True))
    order = sorted(range(len(values)), key=lambda k: values[k])
    assert all(found[a] <= found[b] + 1e-12 for a, b in itertools.pairwise(order))


def test_students_t_is_scipys():
    a, b = np.array([0.7, 0.8, 0.75]), np.array([0.5, 0.65, 0.6])
    low, high, p = student(list(map(float, a - b)))
    theirs = ttest_rel(a, b)
    assert p == pytest.approx(theirs.pvalue)
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert all(map(math.isnan, student([0.1])))
    assert student([0.0, 0.0]) == (0, 0, 1)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=2, max_size=8))
def test_exchanged_signs_against_all_of_them(differences):
    moved = [d for d in differences if d]
    if len(moved) < 2:
        assert signs(np.array(differences)) == 1
        return
    seen = abs(fmean(moved))
    every = [
        abs(fmean(s * d for s, d in zip(each, moved, strict=True)))
        for each in itertools.product((1, -1), repeat=len(moved))
    ]
    assert signs(np.array(differences)) == pytest.approx(fmean(value >= seen - 1e-9 for value in every), abs=1e-9)


def outcomes(share, seeds=3, tasks=40, start=0):
    draw = np.random.default_rng(start)
    return {seed: {f"t{k}": float(draw.random() < share) for k in range(tasks)} for seed in range(seeds)}


def test_pairs():
    (found,) = paired({"good": outcomes(0.9), "bad": outcomes(0.2, start=9)})
    assert found.difference > 0.5
    assert found.interval[0] > 0
    assert max(found.p_seeds, found.p_tasks) < 0.05
    assert found.effect > 0.8
    assert (found.seeds, found.tasks) == (3, 40)
    (same,) = paired({"a": outcomes(0.5), "b": outcomes(0.5)})
    assert (same.difference, same.p_seeds, same.p_tasks, same.effect) == (0, 1, 1, 0)
    assert len(paired({name: outcomes(0.5, start=k) for k, name in enumerate("abcd")})) == 6


def test_only_what_both_have_is_compared():
    ours, theirs = outcomes(0.5), outcomes(0.5, start=1)
    del theirs[2]
    theirs[0].pop("t0")
    (found,) = paired({"a": ours, "b": theirs})
    assert (found.seeds, found.tasks) == (2, 39)
    with pytest.raises(ValueError, match="no task in common"):
        paired({"a": {0: {"x": 1.0}}, "b": {0: {"y": 1.0}}})


@pytest.mark.slow
def test_no_difference_is_seldom_called_one():
    draw = np.random.default_rng(3)
    called = []
    for _ in range(300):
        differences = draw.choice([-1.0, 0.0, 1.0], size=60, p=[0.2, 0.6, 0.2])
        called.append(signs(differences) < 0.05)
    assert fmean(called) < 0.09
