"""Returns over episodes of different lengths."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from support.naive_advantages import to_go
from whetstone.algorithms.returns import is_last_step, next_values, one_step_targets, previous_values, reward_to_go

RUNS = st.lists(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=5)


@given(runs=RUNS, discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_rewards_do_not_cross_episodes_or_stops(runs, discount):
    flat = [step for run in runs for step in run]
    owner = integers(*(i for i, run in enumerate(runs) for _ in run))
    returns = reward_to_go(of(*(r for r, _ in flat)), owner, discount=discount)
    stopped = reward_to_go(of(*(r for r, _ in flat)), owner, discount=discount, stop=torch.tensor([s for _, s in flat]))
    rewards = [[r for r, _ in run] for run in runs]
    assert returns.tolist() == pytest.approx([g for r in rewards for g in to_go(r, discount)], abs=1e-9)
    expected = [g for run, r in zip(runs, rewards, strict=True) for g in to_go(r, discount, [s for _, s in run])]
    assert stopped.tolist() == pytest.approx(expected, abs=1e-9)


def test_previous_and_next_values_stay_within_an_episode():
    x, run = of(1, 2, 3, 4), integers(0, 0, 2, 2)
    assert next_values(x, run, of(7, 8, 9)).tolist() == [2, 7, 4, 9]
    assert previous_values(x, run, of(5, 5, 6, 6)).tolist() == [5, 1, 6, 3]
    assert is_last_step(run).tolist() == [False, True, False, True]


def test_invalid_input_is_refused():
    for run in (integers(1, 0), integers(0, 2, 1, 3)):
        with pytest.raises(ValueError, match="ascending"):
            reward_to_go(torch.zeros(len(run)), run)
    with pytest.raises(ValueError, match="discount"):
        reward_to_go(of(1), integers(0), discount=1.1)
    with pytest.raises(ValueError, match="steps and run indices must have the same shape"):
        reward_to_go(of(1), integers(0, 0))
    with pytest.raises(ValueError, match="steps and run indices must have the same shape"):
        next_values(of(1), integers(0, 0), of(0))
    with pytest.raises(ValueError, match="steps and run indices must have the same shape"):
        previous_values(of(1), integers(0, 0), of(0, 0))


def test_empty_input_gives_empty_returns():
    assert reward_to_go(of(), integers()).tolist() == []


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_returns_have_full_precision_and_no_gradient(discount):
    rewards = torch.tensor([0.1, 0.7], requires_grad=True)
    returns = reward_to_go(rewards, integers(0, 0), discount=discount)
    assert returns.dtype is torch.float64
    assert not returns.requires_grad
    first, last = rewards.tolist()
    assert returns.tolist() == [first + discount * last, last]


def test_stop_can_be_a_column_of_numbers():
    assert reward_to_go(of(1, 2, 4), integers(0, 0, 0), stop=of(0, 1, 0)).tolist() == [3, 2, 4]
    assert reward_to_go(of(1, 2, 4), integers(0, 0, 0), stop=integers(3, 0, 0)).tolist() == [1, 6, 4]


def test_previous_and_next_values_have_the_precision_of_the_values():
    wide, narrow = of(1, 2), torch.tensor([7.0, 8.0])
    run = integers(0, 1)
    for values, others in ((wide, narrow), (narrow, wide)):
        assert next_values(values, run, others).dtype is values.dtype
        assert previous_values(values, run, others).dtype is values.dtype
        assert (
            next_values(values, run, others).tolist()
            == previous_values(values, run, others).tolist()
            == others.tolist()
        )


def test_one_step_targets_are_reward_plus_discounted_next_value():
    # .1 + .9 · .6; 0 + .9 · .8 of the value after the run; and a run of one step
    targets = one_step_targets(of(0.1, 0, 1), of(0.4, 0.6, 0.2), torch.tensor([0, 0, 1]), of(0.8, 0), discount=0.9)
    assert targets.tolist() == pytest.approx([0.64, 0.72, 1])
