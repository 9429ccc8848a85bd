"""The worked numbers of the recurrence, over turns and over action tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests_batches import of, whole
from whetstone.algorithms.advantages import gae, token_gae, turn_gae, whitened


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


STEPS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=6)
ONE = whole(0, 0, 0)


def test_three_turns_that_came_to_an_end():
    said = turn_gae(of(0, 0.1, 1), of(0.5, 0.6, 0.8), of(0), ONE, discount=0.95, trace=0.9, whiten=False)
    assert said.advantages.tolist() == near(0.438505, 0.431, 0.2)
    assert said.targets["values"].tolist() == near(0.938505, 1.031, 1.0)


def test_three_turns_that_were_cut_short():
    said = turn_gae(of(0, 0.1, 0), of(0.5, 0.6, 0.8), of(0.7), ONE, discount=0.95, trace=0.9, whiten=False)
    assert said.advantages.tolist() == near(0.193612, 0.144575, -0.135)
    assert said.targets["values"].tolist() == near(0.693612, 0.744575, 0.665)


def test_action_tokens_with_observations_between_them():
    tokens, owner = of(0.1, 0.2, 0.4, 0.5), whole(0, 0, 0, 0)
    said = token_gae(of(0, 0, 0, 1), tokens, of(0), owner, discount=0.9, trace=0.8, whiten=False)
    assert said.advantages.tolist() == near(0.407744, 0.4552, 0.41, 0.5)
    assert said.targets["token_values"].tolist() == near(0.507744, 0.6552, 0.81, 1.0)
    whitened_too = token_gae(of(0, 0, 0, 1), tokens, of(0), owner, discount=0.9, trace=0.8)
    assert whitened_too.advantages.tolist() == near(-0.812134, 0.273762, -0.760512, 1.298884)
    assert whitened_too.targets["token_values"].tolist() == near(0.507744, 0.6552, 0.81, 1.0)
    cut = token_gae(of(0, 0, 0, 0), tokens, of(0.6), owner, discount=0.9, trace=0.8, whiten=False)
    assert cut.advantages.tolist() == near(0.236050, 0.216736, 0.0788, 0.04)


@given(steps=STEPS)
def test_without_discount_and_with_a_whole_trace_it_is_what_is_to_come_minus_the_value(steps):
    rewards, values = of(*(r for r, _ in steps)), of(*(v for _, v in steps))
    advantages = gae(rewards, values, whole(*[0] * len(steps)), of(0), discount=1, trace=1)
    to_come = rewards.flip(0).cumsum(0).flip(0)
    assert torch.allclose(advantages, to_come - values)


@given(steps=STEPS)
def test_with_a_whole_trace_and_no_values_it_is_the_reward_to_go(steps):
    rewards = of(*(r for r, _ in steps))
    nothing = torch.zeros_like(rewards)
    found = turn_gae(rewards, nothing, of(0), whole(*[0] * len(steps)), discount=1, trace=1, whiten=False)
    assert torch.allclose(found.advantages, rewards.flip(0).cumsum(0).flip(0))


@given(reward=st.floats(-2, 2), value=st.floats(-2, 2))
def test_an_episode_of_one_turn_is_token_gae_with_one_token(reward, value):
    of_turn = turn_gae(of(reward), of(value), of(0), whole(0), whiten=False)
    of_token = token_gae(of(reward), of(value), of(0), whole(0), whiten=False)
    assert of_turn.advantages.tolist() == of_token.advantages.tolist() == [pytest.approx(reward - value)]


def test_turns_are_whitened_over_the_batch():
    rewards, values = of(0, 1, 0), of(0, 0, 0)
    said = turn_gae(rewards, values, of(0, 0), whole(0, 0, 1))
    plain = turn_gae(rewards, values, of(0, 0), whole(0, 0, 1), whiten=False)
    assert torch.allclose(said.advantages, whitened(plain.advantages))
    assert torch.equal(said.targets["values"], plain.targets["values"])


def test_shapes_and_ranges_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"one value per reward: got \[2\] and \[1\]"):
        gae(of(0, 1), of(0), whole(0, 0), of(0))
    for options in ({"discount": 1.5}, {"discount": -0.1}, {"trace": 1.5}, {"trace": -0.1}):
        with pytest.raises(ValueError, match="discount and trace"):
            gae(of(1), of(0), whole(0), of(0), **options)
    with pytest.raises(ValueError, match="one trajectory per step"):
        gae(of(1), of(0), whole(0, 0), of(0))


def test_without_a_discount_only_what_comes_at_once_counts_and_without_a_trace_one_step_ahead():
    rewards, values = of(0, 0.1, 1), of(0.5, 0.6, 0.8)
    assert gae(rewards, values, ONE, of(0), discount=0).tolist() == near(-0.5, -0.5, 0.2)
    # 0 + .6 − .5, .1 + .8 − .6, 1 + 0 − .8
    assert gae(rewards, values, ONE, of(0), discount=1, trace=0).tolist() == near(0.1, 0.3, 0.2)


def test_what_steps_earned_and_were_thought_to_be_worth_has_no_gradient():
    rewards, values = of(0, 1).requires_grad_(), of(0.5, 0.5).requires_grad_()
    assert not gae(rewards, values, whole(0, 0), of(0)).requires_grad
