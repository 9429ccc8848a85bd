"""Backward sums over ragged runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from tests_naive_credit import to_go
from whetstone.algorithms.returns import following, last_of, one_step_ahead, preceding, reward_to_go

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
    for run in (whole(1, 0), whole(0, 2, 1, 3)):
        with pytest.raises(ValueError, match="ascending"):
            reward_to_go(torch.zeros(len(run)), run)
    with pytest.raises(ValueError, match="discount"):
        reward_to_go(of(1), whole(0), discount=1.1)
    with pytest.raises(ValueError, match="one trajectory per step"):
        reward_to_go(of(1), whole(0, 0))
    with pytest.raises(ValueError, match="one trajectory per step"):
        following(of(1), whole(0, 0), of(0))
    with pytest.raises(ValueError, match="one trajectory per step"):
        preceding(of(1), whole(0, 0), of(0, 0))


def test_nothing_gives_nothing():
    assert reward_to_go(of(), whole()).tolist() == []


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_returns_have_the_whole_width_and_no_gradient(discount):
    rewards = torch.tensor([0.1, 0.7], requires_grad=True)
    found = reward_to_go(rewards, whole(0, 0), discount=discount)
    assert found.dtype is torch.float64
    assert not found.requires_grad
    first, last = rewards.tolist()
    assert found.tolist() == [first + discount * last, last]


def test_a_stop_may_be_a_column_of_numbers():
    assert reward_to_go(of(1, 2, 4), whole(0, 0, 0), stop=of(0, 1, 0)).tolist() == [3, 2, 4]
    assert reward_to_go(of(1, 2, 4), whole(0, 0, 0), stop=whole(3, 0, 0)).tolist() == [1, 6, 4]


def test_neighbours_have_the_width_of_the_values():
    wide, narrow = of(1, 2), torch.tensor([7.0, 8.0])
    run = whole(0, 1)
    for values, others in ((wide, narrow), (narrow, wide)):
        assert following(values, run, others).dtype is values.dtype
        assert preceding(values, run, others).dtype is values.dtype
        assert following(values, run, others).tolist() == preceding(values, run, others).tolist() == others.tolist()


def test_one_step_ahead_is_what_a_step_earns_and_what_is_foretold_behind_it():
    # .1 + .9 · .6; 0 + .9 · .8 of what follows the run; and a run of its own
    found = one_step_ahead(of(0.1, 0, 1), of(0.4, 0.6, 0.2), torch.tensor([0, 0, 1]), of(0.8, 0), discount=0.9)
    assert found.tolist() == pytest.approx([0.64, 0.72, 1])
