"""Worked numbers, brute force, and intervals that hold what they promise."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_slow import examples, mostly_slow
from whetstone.evaluation.intervals import clustered, wilson
from whetstone.evaluation.measures import (
    calibration,
    faster_than,
    majority,
    matched_before_mismatch,
    pass_at_k,
    pass_hat_k,
    tool_productivity,
)


def test_worked_numbers():
    assert [pass_at_k(10, 3, k) for k in (1, 2, 5)] == pytest.approx([0.3, 0.5333, 0.9167], abs=1e-4)
    assert [pass_hat_k(10, 3, k) for k in (2, 5)] == pytest.approx([0.0667, 0], abs=1e-4)
    assert fmean(pass_hat_k(4, c, 2) for c in (4, 2, 0)) == pytest.approx(0.3889, abs=1e-4)
    assert tool_productivity([True, True, False, True, False], [1, 2, 0, 2, 1]) == 0.5
    assert math.isnan(tool_productivity([True], [0]))


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_brute_force(case):
    n, c, k = case
    drawn = [[i < c for i in chosen] for chosen in itertools.combinations(range(n), k)]
    assert pass_at_k(n, c, k) == pytest.approx(fmean(map(any, drawn)))
    assert pass_hat_k(n, c, k) == pytest.approx(fmean(map(all, drawn)))


def test_many_samples_are_no_trouble():
    assert pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)
    assert 0 < pass_hat_k(1000, 999, 500) < 1


@pytest.mark.parametrize("of", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize("k", [0, 6])
def test_k_is_at_most_the_samples(of, k):
    with pytest.raises(ValueError, match="between 1 and"):
        of(5, 2, k)


def test_calibration():
    found = calibration([0.9, 0.9, 0.8, 0.3], [True, False, True, False])
    assert (found.expected_error, found.brier, found.auroc) == pytest.approx((0.325, 0.2375, 0.625))
    assert calibration([1.0], [True]).expected_error == 0
    assert math.isnan(calibration([1.0], [True]).auroc)
    assert calibration([], []) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12))
def test_auroc_is_the_share_of_pairs(cases):
    right, wrong = ([q for q, y in cases if y is side] for side in (True, False))
    if right and wrong:
        pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong]
        assert calibration([q / 4 for q, _ in cases], [y for _, y in cases]).auroc == pytest.approx(fmean(pairs))


def test_other_measures():
    assert matched_before_mismatch([3, 5, 1], [5, 5, 4]) == pytest.approx(
        {"progress": 0.6167, "success": 0.3333, "mean": 0.475}, abs=1e-4
    )
    assert majority(["a", "b", None, "b", "a"]) == "a"
    assert majority([None]) is None
    assert faster_than([0, 0.9, 1.2, 3.0]) == 0.5
    assert faster_than([0, 0.9, 1.2, 3.0], than=2) == 0.25


def test_an_interval_of_what_is_all_the_same():
    assert clustered([[1.0, 1.0]] * 10) == wilson(10, 10)
    assert clustered([[0.5]] * 3) == (0.5, 0.5)
    assert all(map(math.isnan, clustered([])))
    assert clustered([[], [1.0], []]) == wilson(1, 1)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=2, max_size=8))
@examples(25)
def test_the_mean_is_inside(tasks):
    low, high = clustered(tasks)
    mean = sum(map(sum, tasks)) / sum(map(len, tasks))
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1


def coverage(draws, interval, truth):
    inside = [low - 1e-12 <= truth <= high + 1e-12 for low, high in map(interval, draws)]
    return fmean(inside)


@pytest.mark.slow
def test_intervals_hold_what_they_promise_where_episodes_of_a_task_are_alike():
    draw = np.random.default_rng(1)

    def tasks(count, samples):
        hard = draw.beta(2, 2, size=count)  # mean 1/2
        return [list(map(float, draw.random(samples) < p)) for p in hard]

    draws = [tasks(60, 8) for _ in range(300)]
    of_tasks = coverage(draws, clustered, 0.5)
    as_if_alone = coverage(draws, lambda rows: wilson(int(sum(map(sum, rows))), sum(map(len, rows))), 0.5)
    assert 0.91 <= of_tasks <= 0.985  # 95 %, give or take three standard errors of 300 draws
    assert as_if_alone < of_tasks - 0.1  # what it would be to forget that


@pytest.mark.parametrize("share", mostly_slow([0.5, 0.9, 0.98], quick=[]))
def test_the_wilson_interval_holds_what_it_promises(share):
    draw = np.random.default_rng(2)
    counts = draw.binomial(200, share, size=4000)
    assert 0.925 <= coverage(counts, lambda c: wilson(int(c), 200), share) <= 0.975
