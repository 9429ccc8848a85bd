"""GAE: worked numbers of the recurrence over turns and over action tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms.advantages import gae, token_gae, turn_gae, whitened


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


STEPS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=6)
ONE = integers(0, 0, 0)


def test_three_turns_of_a_terminated_episode():
    result = turn_gae(of(0, 0.1, 1), of(0.5, 0.6, 0.8), of(0), ONE, discount=0.95, trace=0.9, whiten=False)
    assert result.advantages.tolist() == near(0.438505, 0.431, 0.2)
    assert result.targets["values"].tolist() == near(0.938505, 1.031, 1.0)


def test_three_turns_of_a_truncated_episode():
    result = turn_gae(of(0, 0.1, 0), of(0.5, 0.6, 0.8), of(0.7), ONE, discount=0.95, trace=0.9, whiten=False)
    assert result.advantages.tolist() == near(0.193612, 0.144575, -0.135)
    assert result.targets["values"].tolist() == near(0.693612, 0.744575, 0.665)


def test_action_tokens_separated_by_observations():
    tokens, owner = of(0.1, 0.2, 0.4, 0.5), integers(0, 0, 0, 0)
    result = token_gae(of(0, 0, 0, 1), tokens, of(0), owner, discount=0.9, trace=0.8, whiten=False)
    assert result.advantages.tolist() == near(0.407744, 0.4552, 0.41, 0.5)
    assert result.targets["token_values"].tolist() == near(0.507744, 0.6552, 0.81, 1.0)
    whitened_too = token_gae(of(0, 0, 0, 1), tokens, of(0), owner, discount=0.9, trace=0.8)
    assert whitened_too.advantages.tolist() == near(-0.812134, 0.273762, -0.760512, 1.298884)
    assert whitened_too.targets["token_values"].tolist() == near(0.507744, 0.6552, 0.81, 1.0)
    cut = token_gae(of(0, 0, 0, 0), tokens, of(0.6), owner, discount=0.9, trace=0.8, whiten=False)
    assert cut.advantages.tolist() == near(0.236050, 0.216736, 0.0788, 0.04)


@given(steps=STEPS)
def test_discount_and_trace_of_one_give_return_minus_value(steps):
    rewards, values = of(*(r for r, _ in steps)), of(*(v for _, v in steps))
    advantages = gae(rewards, values, integers(*[0] * len(steps)), of(0), discount=1, trace=1)
    to_come = rewards.flip(0).cumsum(0).flip(0)
    assert torch.allclose(advantages, to_come - values)


@given(steps=STEPS)
def test_trace_of_one_and_zero_values_give_the_reward_to_go(steps):
    rewards = of(*(r for r, _ in steps))
    nothing = torch.zeros_like(rewards)
    result = turn_gae(rewards, nothing, of(0), integers(*[0] * len(steps)), discount=1, trace=1, whiten=False)
    assert torch.allclose(result.advantages, rewards.flip(0).cumsum(0).flip(0))


@given(reward=st.floats(-2, 2), value=st.floats(-2, 2))
def test_turn_gae_of_one_turn_is_token_gae_of_one_token(reward, value):
    of_turn = turn_gae(of(reward), of(value), of(0), integers(0), whiten=False)
    of_token = token_gae(of(reward), of(value), of(0), integers(0), whiten=False)
    assert of_turn.advantages.tolist() == of_token.advantages.tolist() == [pytest.approx(reward - value)]


def test_turns_are_whitened_over_the_batch():
    rewards, values = of(0, 1, 0), of(0, 0, 0)
    result = turn_gae(rewards, values, of(0, 0), integers(0, 0, 1))
    plain = turn_gae(rewards, values, of(0, 0), integers(0, 0, 1), whiten=False)
    assert torch.allclose(result.advantages, whitened(plain.advantages))
    assert torch.equal(result.targets["values"], plain.targets["values"])


def test_invalid_shapes_and_ranges_are_refused():
    with pytest.raises(ValueError, match=r"rewards and values must have the same shape, got \[2\] and \[1\]"):
        gae(of(0, 1), of(0), integers(0, 0), of(0))
    for options in ({"discount": 1.5}, {"discount": -0.1}, {"trace": 1.5}, {"trace": -0.1}):
        with pytest.raises(ValueError, match="discount and trace"):
            gae(of(1), of(0), integers(0), of(0), **options)
    with pytest.raises(ValueError, match="steps and run indices must have the same shape"):
        gae(of(1), of(0), integers(0, 0), of(0))


def test_zero_discount_counts_immediate_rewards_and_zero_trace_is_one_step_td():
    rewards, values = of(0, 0.1, 1), of(0.5, 0.6, 0.8)
    assert gae(rewards, values, ONE, of(0), discount=0).tolist() == near(-0.5, -0.5, 0.2)
    # 0 + .6 − .5, .1 + .8 − .6, 1 + 0 − .8
    assert gae(rewards, values, ONE, of(0), discount=1, trace=0).tolist() == near(0.1, 0.3, 0.2)


def test_rewards_and_values_receive_no_gradient():
    rewards, values = of(0, 1).requires_grad_(), of(0.5, 0.5).requires_grad_()
    assert not gae(rewards, values, integers(0, 0), of(0)).requires_grad
