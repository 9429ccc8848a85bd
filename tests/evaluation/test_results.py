import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.evaluation import compute_pass_at_k, success_rate, summarize_episodes
from whetstone.trajectory import EndReason, Group, RemovalScope, Score, Task, Trajectory


def test_worked_numbers_of_the_wilson_interval():
    # 8 of 10, z = 1.959964: center (0.8 + z²/20)/(1 + z²/10) = 0.716740, half width 0.226559
    rate = success_rate([True] * 8 + [False] * 2)
    assert rate.success == 0.8
    assert rate.interval == pytest.approx((0.490162, 0.943318), abs=1e-5)


def test_no_episodes_give_the_interval_zero_to_one():
    rate = success_rate([])
    assert math.isnan(rate.success)
    assert rate.interval == (0.0, 1.0)


def test_worked_numbers_of_pass_at_k():
    # 5 samples, 2 correct: 1 − C(3,2)/C(5,2) = 1 − 3/10
    assert compute_pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert compute_pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert compute_pass_at_k(5, 3, 3) == 1.0
    assert compute_pass_at_k(5, 0, 5) == 0.0
    with pytest.raises(ValueError, match="between 1 and"):
        compute_pass_at_k(2, 1, 3)


@given(st.integers(1, 40), st.data())
def test_pass_at_k_is_the_ratio_of_binomials(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert compute_pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-9)


def episode(success, ended=EndReason.TERMINATED):
    if not ended.valid:
        return Trajectory("t", "x", (), (), ended, removal=RemovalScope.BEFORE_BASELINE)
    return Trajectory("t", "x", (), (), ended, score=Score(float(success), {"correct": success}, success=success))


def test_infrastructure_failures_are_excluded_from_rates_and_counted():
    groups = [
        Group(Task("a", "", tags={"kind": "easy"}), (episode(True), episode(False, EndReason.ERROR))),
        Group(Task("b", "", tags={"kind": "hard"}), (episode(False, EndReason.MAX_TURNS), episode(True))),
    ]
    summary = summarize_episodes(groups, temperature=1.0)
    assert (summary.episodes, summary.invalid, summary.success) == (3, 1, pytest.approx(2 / 3))
    assert {kind: r.success for kind, r in summary.kinds.items()} == {"easy": 1.0, "hard": 0.5}
    assert summary.ended == {"terminated": 0.5, "error": 0.25, "max_turns": 0.25}
    assert summary.parts == {"correct": pytest.approx(2 / 3)}
    assert summary.well_formed_calls is None
    # only task b has both of its samples: 1 − C(1,2)/C(2,2) = 1
    assert summary.pass_at == {"1": 0.5, "2": 1.0}


def test_empty_evaluation_has_a_summary():
    assert math.isnan(summarize_episodes([], temperature=0.0).success)
