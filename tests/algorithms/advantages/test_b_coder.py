"""B-Coder: worked numbers of a Q-function parametrized by log-probs."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.advantages import b_coder
from whetstone.algorithms.objectives import OBJECTIVES


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-6)


def test_each_token_is_backed_up_from_the_next_stored_token():
    # β .1: Q = V + .1 log π = .5 − .1, .6 − .2, .7 − .05 = .4, .4, .65;  B Q = γ .4, γ .65, 1  with γ ½ = .2, .325, 1
    result = b_coder(
        of(0, 0, 1), of(0.5, 0.6, 0.7), of(0), of(-1, -2, -0.5), integers(0, 0, 0), temperature=0.1, discount=0.5
    )
    assert result.advantages.tolist() == near(-0.2, -0.075, 0.35)
    # V → B Q − .1 log π = .2 + .1, .325 + .2, 1 + .05
    assert result.targets["token_values"].tolist() == near(0.3, 0.525, 1.05)


def test_initial_q_values_are_scaled_log_probs():
    # V 0: Q = .05 · −2 = −.1 and .05 · −4 = −.2; B Q = −.2 and 1
    result = b_coder(of(0, 1), of(0, 0), of(0), of(-2, -4), integers(0, 0))
    assert result.advantages.tolist() == near(-0.1, 1.2)


def test_values_do_not_cross_episodes_and_a_truncated_episode_bootstraps():
    result = b_coder(of(0, 0), of(0.2, 0.9), of(0.6, 0), of(0, 0), integers(0, 1))
    assert result.advantages.tolist() == near(0.6 - 0.2, 0 - 0.9)


def test_consistent_q_values_give_zero_advantage():
    # one token, reward 1, V = 1 + .05 · 2
    result = b_coder(of(1), of(1.1), of(0), of(-2), integers(0))
    assert result.advantages.tolist() == near(0)
    assert result.targets["token_values"].tolist() == near(1.1)


def test_conservative_term_adds_imitation_and_leaves_the_state_value():
    columns = of(0, 0, 1), of(0.3, 0.1, 0.4), of(0), of(-1.0, -0.2, -2.0), integers(0, 0, 0)
    plain, conservative = b_coder(*columns), b_coder(*columns, conservative=0.3)
    assert (conservative.advantages - plain.advantages).tolist() == near(0.3, 0.3, 0.3)
    assert torch.equal(conservative.targets["token_values"], plain.targets["token_values"])
    # of three actions, V .7, β .1: the penalty adds minus the log-probability of the stored action, 2
    logits, value, beta = of(0.2, -1.0, 0.5).requires_grad_(), 0.7, 0.1
    q = value + beta * logits.log_softmax(0)
    penalty = beta * torch.logsumexp(q / beta, 0) - q[2]
    (one,) = torch.autograd.grad(penalty, logits)
    (other,) = torch.autograd.grad(-beta * logits.log_softmax(0)[2], logits)
    assert one.tolist() == near(*other.tolist())


def test_policy_gradient_is_that_of_the_squared_residual():
    rewards, values, last, run = of(0, 0, 1), of(0.3, 0.1, 0.4), of(0), integers(0, 0, 0)
    logprobs = of(-1.0, -0.2, -2.0).requires_grad_()
    result = b_coder(rewards, values, last, logprobs.detach(), run, temperature=0.1)
    pushed = OBJECTIVES["policy_gradient"](learner_logprobs=logprobs, advantages=result.advantages).loss.sum()
    (one,) = torch.autograd.grad(pushed, logprobs)
    wanted = result.advantages + values + 0.1 * logprobs.detach()  # B Q, detached
    (other,) = torch.autograd.grad((0.5 * (wanted - values - 0.1 * logprobs).square()).sum(), logprobs)
    assert (0.1 * one).tolist() == near(*other.tolist())
