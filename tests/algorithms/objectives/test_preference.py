"""Preference losses on sums of log-probs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import integers, of
from whetstone.algorithms.objectives import dpo, ipo, kto, orpo, preference_pairs, refuel, simpo, step_dpo

REWARDS, GROUP, KEYS, LENGTHS = of(1, 0), integers(0, 0), integers(0, 1), integers(3, 2)


def loss_and_gradient(function, gap, **options):
    """Return (loss, gradients) of a pair whose log-ratios differ by `gap`."""
    now = of(gap, 0).requires_grad_()
    loss = function(now, of(0, 0), REWARDS, GROUP, KEYS, LENGTHS, **options).loss
    loss.backward()
    return loss.item(), now.grad.tolist()


@pytest.mark.parametrize(
    ("gap", "value", "slope"), [(0, 0.693147, -0.05), (2, 0.598139, -0.045017), (-2, 0.798139, -0.054983)]
)
def test_worked_numbers(gap, value, slope):
    for function in (dpo, step_dpo):
        result = loss_and_gradient(function, gap)
        assert result == (pytest.approx(value, abs=1e-6), pytest.approx([slope, -slope], abs=1e-6))


def test_ipo_regresses_the_gap_to_a_margin():
    # over three and two tokens: 3 / 3 - 0 = 1, the margin 1 / (2 · 0.5) = 1
    assert loss_and_gradient(ipo, 3.0, beta=0.5) == (pytest.approx(0.0), pytest.approx([0.0, 0.0]))
    # as single sums: (3 - 1)² = 4, slope 2 · 2
    assert loss_and_gradient(ipo, 3.0, beta=0.5, normalize_length=False) == (
        pytest.approx(4.0),
        pytest.approx([4.0, -4.0]),
    )


def test_simpo_compares_mean_log_probs_without_a_reference():
    # ℓ̄ of -1 and -0.5: 2 (-1 + 0.5) - 1 = -2: log(1 + e²), slope -σ(2) · 2 over the tokens of each
    now = of(-3, -1).requires_grad_()
    loss = simpo(now, REWARDS, GROUP, KEYS, LENGTHS).loss
    loss.backward()
    assert loss.item() == pytest.approx(2.126928, abs=1e-6)
    assert now.grad.tolist() == pytest.approx([-0.587198, 0.880797], abs=1e-6)


def test_orpo_adds_an_odds_ratio_to_imitation():
    # p of e^-1 and e^-0.5: log odds -0.541325 and 0.432752
    loss = orpo(of(-3, -1), REWARDS, GROUP, KEYS, LENGTHS, weight=0.1).loss
    assert loss.item() == pytest.approx(1 + 0.1 * math.log(1 + math.exp(0.541325 + 0.432752)), abs=1e-6)


def test_step_dpo_uses_the_tokens_of_the_differing_step():
    # ℓ_w .5 + .9, ref .7 + 1; ℓ_l .8, ref .6: Δ .3 + .2
    now = of(-1.4, -0.8).requires_grad_()
    loss = step_dpo(now, of(-1.7, -0.6), REWARDS, GROUP, KEYS, LENGTHS).loss
    loss.backward()
    assert loss.item() == pytest.approx(0.668460, abs=1e-6)
    assert now.grad.tolist() == pytest.approx([-0.04875, 0.04875], abs=1e-5)


@given(st.floats(-5, 5), st.floats(0.01, 1))
def test_gradient_at_zero_gap_is_antisymmetric(gap, beta):
    now, other = of(0, 0).requires_grad_(), of(0, 0).requires_grad_()
    dpo(now, of(0, 0), of(1, 0), GROUP, KEYS, LENGTHS, beta=beta).loss.backward()
    dpo(other, of(0, 0), of(0, 1), GROUP, KEYS, LENGTHS, beta=beta).loss.backward()
    assert now.grad.tolist() == pytest.approx((-other.grad).tolist())
    assert now.grad[0].item() == pytest.approx(-beta / 2)


def test_pairs_share_a_task_and_differ_in_reward_and_actions():
    pairs = preference_pairs(of(1, 0, 0, 1), integers(0, 0, 1, 0), integers(0, 1, 2, 1))
    assert pairs.tolist() == [[0, 1]]  # 3 is better than 1 too, but has the same actions
    assert preference_pairs(of(1, 1), integers(0, 0)).tolist() == []


def test_no_pairs_give_zero_loss_and_gradient():
    now = of(-1, -2).requires_grad_()
    result = dpo(now, of(0, 0), of(1, 1), GROUP, KEYS, LENGTHS)
    result.loss.backward()
    assert (result.loss.item(), now.grad.tolist()) == (0, [0, 0])


def test_options_change_the_loss():
    assert loss_and_gradient(dpo, 2.0, smoothing=1.0)[0] == pytest.approx(loss_and_gradient(dpo, -2.0)[0])
    assert loss_and_gradient(dpo, 6.0, normalize_length=True)[0] == pytest.approx(
        loss_and_gradient(dpo, 2.0)[0]
    )  # over three tokens
    assert loss_and_gradient(dpo, 0.0, imitate=0.5)[1][0] == pytest.approx(-0.05 - 0.5 / 3)


def test_worked_numbers_of_kto():
    # z .05: the logit is .1 · .75
    good = kto(of(0.8), of(0), of(1), reference_point=0.05).loss.item()
    bad = kto(of(0.8), of(0), of(0), reference_point=0.05).loss.item()
    assert (good, bad) == (pytest.approx(0.481259, abs=1e-6), pytest.approx(0.518741, abs=1e-6))
    now = of(0.4, -0.2).requires_grad_()
    result = kto(now, of(0, 0), of(1, 0))
    assert result.metrics["preference/reference_point"] == pytest.approx(0.1)
    result.loss.backward()
    assert now.grad[0] < 0 < now.grad[1]


def regression(difference, gap, **options):
    now = of(difference, 0).requires_grad_()
    loss = refuel(now, of(0, 0), of(gap, 0), GROUP, **options).loss
    loss.backward()
    return loss.item(), now.grad[0].item()


def test_worked_numbers_of_refuel():
    assert regression(0.7, 1) == (pytest.approx(0.09), pytest.approx(-0.6))
    assert regression(0.7, 0.5) == (pytest.approx(0.04), pytest.approx(0.4))
    assert regression(0.7, 1, reward_scale=0.5) == (pytest.approx(0.04), pytest.approx(0.4))
    assert regression(0.3 + 0.1, 0.9 - 0.4)[0] == pytest.approx(0.01)
    assert regression(0.7, 0)[1] == pytest.approx(1.4)  # equal rewards penalize any gap


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 1))
def test_refuel_is_independent_of_the_order_of_a_pair(a, b, gap):
    one = refuel(of(a, b), of(0, 0), of(gap, 0), GROUP).loss.item()
    other = refuel(of(b, a), of(0, 0), of(0, gap), GROUP).loss.item()
    assert one == pytest.approx(other)


def test_equal_log_ratios_do_not_count_as_accurate():
    result = dpo(of(1, 1), of(0, 0), REWARDS, GROUP, KEYS, LENGTHS)
    assert result.metrics == {"preference/pairs": 1, "preference/margin": 0, "preference/accuracy": 0}


def test_step_dpo_of_one_step_equals_dpo_of_sums():
    now, reference = of(-1.0, -2.5, -0.3), of(-1.2, -2.0, -0.9)
    where = (of(1, 0, 0.5), integers(0, 0, 0), integers(0, 1, 2), integers(1, 0, 3))
    for options in ({"smoothing": 0.3}, {"imitate": 0.7}, {"beta": 0.5}):
        plain, other = step_dpo(now, reference, *where).loss, step_dpo(now, reference, *where, **options).loss
        assert other == dpo(now, reference, *where, **options).loss != plain
    alone = dpo(
        now, reference, *where, normalize_length=True
    ).loss  # a sum of one token has the same length as one without tokens
    by_hand = [(0.2, -0.5), (0.2, 0.6 / 3), (0.6 / 3, -0.5)]
    losses = [math.log1p(math.exp(-0.1 * (better - worse))) for better, worse in by_hand]
    assert alone.item() == pytest.approx(sum(losses) / 3)
