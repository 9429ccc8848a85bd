"""Single-stream policy optimization: a persistent baseline per task."""

import pytest

from whetstone.algorithms.advantages.single_stream import (
    SuccessCounts,
    initial_counts,
    keep_fraction,
    sampling_weight,
    update_counts,
)


def test_baseline_is_read_before_the_update():
    counts = SuccessCounts(4, 4)
    assert 1 - counts.expected_success == 0.5
    after = update_counts(counts, 1, 0.9)
    assert (after.successes, after.failures) == pytest.approx((4.6, 3.6))
    assert after.expected_success == pytest.approx(0.560976, abs=1e-6)


def test_counts_decay_with_policy_drift():
    assert keep_fraction(0.06) == 0.875  # ½, but at least this
    assert keep_fraction(0.0) == 0.96
    assert keep_fraction(0.006) == pytest.approx(2**-0.1)


def test_initial_counts_of_samples_before_training():
    counts = initial_counts(6, 8)
    assert (counts.successes, counts.failures) == pytest.approx((5.777778, 2.222222), abs=1e-6)
    assert SuccessCounts().expected_success == 0.5
    assert initial_counts(0, 0) == SuccessCounts(0.5, 0.5)


def test_half_solved_tasks_have_the_highest_sampling_weight():
    assert [sampling_weight(v) for v in (0, 0.1, 0.5, 1)] == pytest.approx([0.05, 0.35, 0.55, 0.05])


def test_reward_outside_of_its_range_is_refused():
    for reward in (2, -0.1):
        with pytest.raises(ValueError, match=r"rewards must be in \[0, 1\]"):
            update_counts(SuccessCounts(), reward, 0.9)


def test_failures_and_partial_rewards_count():
    after = update_counts(SuccessCounts(4, 2), 0, 0.5)
    assert (after.successes, after.failures) == (2, 2)
    after = update_counts(SuccessCounts(4, 2), 0.5, 0.5)
    assert (after.successes, after.failures) == (2.5, 1.5)
