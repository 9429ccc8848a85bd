"""The worked numbers of a Q-function that is made of log-probs."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.advantages import b_coder
from whetstone.algorithms.objectives import OBJECTIVES


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-6)


def test_each_token_is_backed_up_from_the_token_that_was_stored_behind_it():
    # β .1: Q = V + .1 log π = .5 − .1, .6 − .2, .7 − .05 = .4, .4, .65;  B Q = γ .4, γ .65, 1  with γ ½ = .2, .325, 1
    said = b_coder(
        of(0, 0, 1), of(0.5, 0.6, 0.7), of(0), of(-1, -2, -0.5), whole(0, 0, 0), temperature=0.1, discount=0.5
    )
    assert said.advantages.tolist() == near(-0.2, -0.075, 0.35)
    # V → B Q − .1 log π = .2 + .1, .325 + .2, 1 + .05
    assert said.targets["token_values"].tolist() == near(0.3, 0.525, 1.05)


def test_it_begins_as_the_log_probs_of_the_policy():
    # V 0: Q = .05 · −2 = −.1 and .05 · −4 = −.2; B Q = −.2 and 1
    said = b_coder(of(0, 1), of(0, 0), of(0), of(-2, -4), whole(0, 0))
    assert said.advantages.tolist() == near(-0.1, 1.2)


def test_no_value_crosses_from_one_episode_into_the_next_and_a_cut_one_goes_on():
    said = b_coder(of(0, 0), of(0.2, 0.9), of(0.6, 0), of(0, 0), whole(0, 1))
    assert said.advantages.tolist() == near(0.6 - 0.2, 0 - 0.9)


def test_where_q_is_what_it_should_be_nothing_is_learned():
    # one token, reward 1, V = 1 + .05 · 2
    said = b_coder(of(1), of(1.1), of(0), of(-2), whole(0))
    assert said.advantages.tolist() == near(0)
    assert said.targets["token_values"].tolist() == near(1.1)


def test_conservative_values_are_imitation_by_as_much_and_leave_the_states_value():
    given = of(0, 0, 1), of(0.3, 0.1, 0.4), of(0), of(-1.0, -0.2, -2.0), whole(0, 0, 0)
    plain, held = b_coder(*given), b_coder(*given, conservative=0.3)
    assert (held.advantages - plain.advantages).tolist() == near(0.3, 0.3, 0.3)
    assert torch.equal(held.targets["token_values"], plain.targets["token_values"])
    # of three actions, V .7, β .1: what the penalty adds is how much likelier the stored one, 2, could be
    logits, value, beta = of(0.2, -1.0, 0.5).requires_grad_(), 0.7, 0.1
    q = value + beta * logits.log_softmax(0)
    penalty = beta * torch.logsumexp(q / beta, 0) - q[2]
    (one,) = torch.autograd.grad(penalty, logits)
    (other,) = torch.autograd.grad(-beta * logits.log_softmax(0)[2], logits)
    assert one.tolist() == near(*other.tolist())


def test_the_policy_moves_as_its_part_of_the_squared_residual_does():
    rewards, values, last, run = of(0, 0, 1), of(0.3, 0.1, 0.4), of(0), whole(0, 0, 0)
    logprobs = of(-1.0, -0.2, -2.0).requires_grad_()
    said = b_coder(rewards, values, last, logprobs.detach(), run, temperature=0.1)
    pushed = OBJECTIVES["policy_gradient"](learner_logprobs=logprobs, advantages=said.advantages).loss.sum()
    (one,) = torch.autograd.grad(pushed, logprobs)
    wanted = said.advantages + values + 0.1 * logprobs.detach()  # B Q, fixed
    (other,) = torch.autograd.grad((0.5 * (wanted - values - 0.1 * logprobs).square()).sum(), logprobs)
    assert (0.1 * one).tolist() == near(*other.tolist())
