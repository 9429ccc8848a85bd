"""Evaluation metrics: worked numbers, brute force, and coverage of intervals."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.slow import examples, mostly_slow
from whetstone.evaluation.evaluation_metrics import (
    compute_calibration,
    compute_pass_at_k,
    majority_answer,
    pass_hat_k,
    success_by_step,
    tool_productivity,
)
from whetstone.evaluation.intervals import clustered_interval, wilson_interval


def test_worked_numbers():
    assert [compute_pass_at_k(10, 3, k) for k in (1, 2, 5)] == pytest.approx([0.3, 0.5333, 0.9167], abs=1e-4)
    assert [pass_hat_k(10, 3, k) for k in (2, 5)] == pytest.approx([0.0667, 0], abs=1e-4)
    assert fmean(pass_hat_k(4, c, 2) for c in (4, 2, 0)) == pytest.approx(0.3889, abs=1e-4)
    assert tool_productivity([True, True, False, True, False], [1, 2, 0, 2, 1]) == 0.5
    assert math.isnan(tool_productivity([True], [0]))


def test_success_by_step_worked_numbers():
    # four episodes: solved in turns 1 and 3, failed in turns 2 and 3
    assert success_by_step([1, 3, 2, 3], [True, True, False, False]) == {"1": 0.25, "2": 0.25, "3": 0.5}
    assert success_by_step([1, 1], [True, False]) == {}
    long = success_by_step([40, 1], [True, False])
    assert list(long) == [*map(str, range(1, 11)), "40"]
    assert long["40"] == 0.5


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_metrics_equal_brute_force(case):
    n, c, k = case
    subset = [[i < c for i in chosen] for chosen in itertools.combinations(range(n), k)]
    assert compute_pass_at_k(n, c, k) == pytest.approx(fmean(map(any, subset)))
    assert pass_hat_k(n, c, k) == pytest.approx(fmean(map(all, subset)))


def test_large_sample_counts_do_not_overflow():
    assert compute_pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)
    assert 0 < pass_hat_k(1000, 999, 500) < 1


@pytest.mark.parametrize("of", [compute_pass_at_k, pass_hat_k])
@pytest.mark.parametrize("k", [0, 6])
def test_k_above_the_number_of_samples_is_refused(of, k):
    with pytest.raises(ValueError, match="between 1 and"):
        of(5, 2, k)


def test_worked_numbers_of_calibration():
    result = compute_calibration([0.9, 0.9, 0.8, 0.3], [True, False, True, False])
    assert (result.expected_error, result.brier, result.auroc) == pytest.approx((0.325, 0.2375, 0.625))
    assert compute_calibration([1.0], [True]).expected_error == 0
    assert math.isnan(compute_calibration([1.0], [True]).auroc)
    assert compute_calibration([], []) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=12))
def test_auroc_is_the_fraction_of_ordered_pairs(cases):
    right, wrong = ([q for q, y in cases if y is side] for side in (True, False))
    if right and wrong:
        pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong]
        assert compute_calibration([q / 4 for q, _ in cases], [y for _, y in cases]).auroc == pytest.approx(
            fmean(pairs)
        )


def test_majority_answer_and_other_metrics():
    assert majority_answer(["a", "b", None, "b", "a"]) == "a"
    assert majority_answer([None]) is None


def test_interval_of_equal_outcomes():
    assert clustered_interval([[1.0, 1.0]] * 10) == wilson_interval(10, 10)
    assert clustered_interval([[0.5]] * 3) == (0.5, 0.5)
    assert all(map(math.isnan, clustered_interval([])))
    assert clustered_interval([[], [1.0], []]) == wilson_interval(1, 1)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=2, max_size=8))
@examples(25)
def test_interval_contains_the_mean(tasks):
    low, high = clustered_interval(tasks)
    mean = sum(map(sum, tasks)) / sum(map(len, tasks))
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1


def coverage(draws, interval, truth):
    inside = [low - 1e-12 <= truth <= high + 1e-12 for low, high in map(interval, draws)]
    return fmean(inside)


@pytest.mark.slow
def test_clustered_intervals_cover_the_truth_with_correlated_episodes():
    draw = np.random.default_rng(1)

    def tasks(count, samples):
        hard = draw.beta(2, 2, size=count)  # mean 1/2
        return [list(map(float, draw.random(samples) < p)) for p in hard]

    draws = [tasks(60, 8) for _ in range(300)]
    of_tasks = coverage(draws, clustered_interval, 0.5)
    as_if_alone = coverage(draws, lambda rows: wilson_interval(int(sum(map(sum, rows))), sum(map(len, rows))), 0.5)
    assert 0.91 <= of_tasks <= 0.985  # 95 %, plus or minus three standard errors of 300 samples
    assert as_if_alone < of_tasks - 0.1  # coverage without clustering


@pytest.mark.parametrize("share", mostly_slow([0.5, 0.9, 0.98], quick=[]))
def test_wilson_interval_covers_the_truth(share):
    draw = np.random.default_rng(2)
    counts = draw.binomial(200, share, size=4000)
    assert 0.925 <= coverage(counts, lambda c: wilson_interval(int(c), 200), share) <= 0.975
