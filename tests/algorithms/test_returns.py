"""Backward sums over ragged runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from tests_naive_credit import to_go
from whetstone.algorithms.returns import following, last_of, preceding, reward_to_go

RUNS = st.lists(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=5)


@given(runs=RUNS, discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_each_run_for_itself_and_nothing_across_a_stop(runs, discount):
    flat = [step for run in runs for step in run]
    owner = whole(*(i for i, run in enumerate(runs) for _ in run))
    found = reward_to_go(of(*(r for r, _ in flat)), owner, discount=discount)
    stopped = reward_to_go(of(*(r for r, _ in flat)), owner, discount=discount, stop=torch.tensor([s for _, s in flat]))
    rewards = [[r for r, _ in run] for run in runs]
    assert found.tolist() == pytest.approx([g for r in rewards for g in to_go(r, discount)], abs=1e-9)
    expected = [g for run, r in zip(runs, rewards, strict=True) for g in to_go(r, discount, [s for _, s in run])]
    assert stopped.tolist() == pytest.approx(expected, abs=1e-9)


def test_neighbours():
    x, run = of(1, 2, 3, 4), whole(0, 0, 2, 2)
    assert following(x, run, of(7, 8, 9)).tolist() == [2, 7, 4, 9]
    assert preceding(x, run, of(5, 5, 6, 6)).tolist() == [5, 1, 6, 3]
    assert last_of(run).tolist() == [False, True, False, True]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="ascending"):
        reward_to_go(of(1, 2), whole(1, 0))
    with pytest.raises(ValueError, match="discount"):
        reward_to_go(of(1), whole(0), discount=1.1)
    with pytest.raises(ValueError, match="one trajectory per step"):
        reward_to_go(of(1), whole(0, 0))


def test_nothing_gives_nothing():
    assert reward_to_go(of(), whole()).tolist() == []
