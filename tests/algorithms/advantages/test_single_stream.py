"""A baseline that is remembered."""

import pytest

from whetstone.algorithms.advantages.single_stream import (
    SuccessCounts,
    kept_share,
    remembered,
    sampling_weight,
    updated,
)


def test_the_baseline_comes_before_the_update():
    counts = SuccessCounts(4, 4)
    assert 1 - counts.baseline == 0.5
    after = updated(counts, 1, 0.9)
    assert (after.successes, after.failures) == pytest.approx((4.6, 3.6))
    assert after.baseline == pytest.approx(0.560976, abs=1e-6)


def test_counts_forget_as_the_policy_drifts():
    assert kept_share(0.06) == 0.875  # ½, but no less than this
    assert kept_share(0.0) == 0.96
    assert kept_share(0.006) == pytest.approx(2**-0.1)


def test_what_samples_before_training_are_worth():
    found = remembered(6, 8)
    assert (found.successes, found.failures) == pytest.approx((5.777778, 2.222222), abs=1e-6)
    assert SuccessCounts().baseline == 0.5
    assert remembered(0, 0) == SuccessCounts(0.5, 0.5)


def test_tasks_half_solved_are_drawn_most():
    assert [sampling_weight(v) for v in (0, 0.1, 0.5, 1)] == pytest.approx([0.05, 0.35, 0.55, 0.05])


def test_a_reward_outside_of_its_range_is_refused():
    for reward in (2, -0.1):
        with pytest.raises(ValueError, match=r"rewards lie in \[0, 1\]"):
            updated(SuccessCounts(), reward, 0.9)


def test_failures_and_halves_count_too():
    after = updated(SuccessCounts(4, 2), 0, 0.5)
    assert (after.successes, after.failures) == (2, 2)
    after = updated(SuccessCounts(4, 2), 0.5, 0.5)
    assert (after.successes, after.failures) == (2.5, 1.5)
