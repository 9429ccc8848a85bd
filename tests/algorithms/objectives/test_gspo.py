"""GSPO: one ratio per sequence."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms import clipped
from whetstone.algorithms.objectives import gspo
from whetstone.algorithms.objectives.gspo import sequence_mean


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def loss_and_gradient(gaps, advantages, *, turns=None, **options):
    learner = of(*gaps).requires_grad_()
    count = len(gaps)
    turn = integers(*(turns or [0] * count))
    result = gspo(learner, torch.zeros_like(learner), of(*advantages), integers(*[0] * count), turn, **options)
    (result.loss.sum() / count).backward()
    return result.loss.mean().item(), learner.grad.tolist()


WIDE = {"clip_low": 0.2, "clip_high": 0.2}


def test_every_token_has_the_gradient_of_its_sequence():
    value, gradient = loss_and_gradient([0.05, -0.02, 0.03], [1, 1, 1], **WIDE)
    assert value == pytest.approx(-1.020201, abs=1e-5)
    assert gradient == near(-0.340067, -0.340067, -0.340067)


def test_clipped_sequence_has_no_gradient_on_any_token():
    value, gradient = loss_and_gradient([0.05, -0.02, 0.03], [1, 1, 1])
    assert (value, gradient) == (pytest.approx(-1.0004), near(0, 0, 0))
    value, gradient = loss_and_gradient([0.05, -0.02, 0.03], [-1, -1, -1])
    assert (value, gradient) == (pytest.approx(1.020201, abs=1e-5), near(0.340067, 0.340067, 0.340067))
    value, gradient = loss_and_gradient([0.0005, -0.0002, 0.0003], [1, 1, 1])
    assert (value, gradient) == (pytest.approx(-1.0002, abs=1e-5), near(-0.3334, -0.3334, -0.3334))


def test_token_form_keeps_token_advantages_and_pooling_averages_them():
    value, gradient = loss_and_gradient([0.05, -0.02, 0.03], [1, 0, -1], **WIDE)
    assert (value, gradient) == (pytest.approx(0, abs=1e-9), near(-0.340067, 0, 0.340067))
    value, gradient = loss_and_gradient([0.05, -0.02, 0.03], [1, 0, -1], pool="mean", **WIDE)
    assert gradient == near(0, 0, 0)


def test_sequence_of_one_token_is_ppo():
    for gap in (-0.5, 0.1, 0.4):
        for advantage in (1.0, -1.0):
            learner = of(gap).requires_grad_()
            clipped(learner, of(0), of(advantage)).loss.sum().backward()
            assert loss_and_gradient([gap], [advantage], **WIDE)[1] == pytest.approx(learner.grad.tolist())


def test_turns_can_be_the_sequences():
    _, gradient = loss_and_gradient([0.3, 0.3, -0.01], [1, 1, 1], turns=[0, 0, 1], level="turn", **WIDE)
    assert gradient[:2] == [0, 0]  # the first turn is beyond its bound, independently of the second
    assert gradient[2] == pytest.approx(-(2.718281828**-0.01) / 3, abs=1e-6)


def test_log_ratio_beyond_its_bound_has_no_gradient():
    value, gradient = loss_and_gradient([12.0, 14.0], [-1, -1], **WIDE)
    assert (value, gradient) == (pytest.approx(2.718281828459045**10), [0, 0])
    ratios = gspo(of(12, 14), of(0, 0), of(-1, -1), integers(0, 0), integers(0, 0)).metrics["policy/ratio"]
    assert ratios.tolist() == pytest.approx([2.718281828459045**10] * 2)
    _, gradient = loss_and_gradient([9.0, 10.0], [-1, -1], **WIDE)
    assert gradient == pytest.approx([2.718281828459045**9.5 / 2] * 2)


def test_improbable_token_counts_unclipped_in_the_mean():
    value, _ = loss_and_gradient([-30.0, 0, 0, 0], [1, 1, 1, 1], **WIDE)
    assert value == pytest.approx(-(2.718281828459045**-7.5))


def test_sequence_mean_averages_per_key():
    assert sequence_mean(of(1, 3, 10), integers(0, 0, 4)).tolist() == [2, 2, 10]


def test_no_tokens_give_no_losses_per_turn():
    assert gspo(of(), of(), of(), integers(), integers(), level="turn").loss.tolist() == []


def test_turns_of_different_sequences_have_separate_ratios():
    # turns (0, 1) and (1, 0) with gaps .3 and −.1 have separate ratios
    result = gspo(of(0.3, -0.1), of(0, 0), of(-1, -1), integers(0, 1), integers(1, 0), level="turn", **WIDE)
    assert result.loss.tolist() == near(2.718281828**0.3, 2.718281828**-0.1)
