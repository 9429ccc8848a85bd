"""One ratio a sequence."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms import clipped
from whetstone.algorithms.objectives import gspo
from whetstone.algorithms.objectives.gspo import mean_of


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def said(gaps, advantages, *, turns=None, **options):
    learner = of(*gaps).requires_grad_()
    count = len(gaps)
    turn = whole(*(turns or [0] * count))
    found = gspo(learner, torch.zeros_like(learner), of(*advantages), whole(*[0] * count), turn, **options)
    (found.loss.sum() / count).backward()
    return found.loss.mean().item(), learner.grad.tolist()


WIDE = {"clip_low": 0.2, "clip_high": 0.2}


def test_every_token_gets_the_sequences_gradient():
    value, gradient = said([0.05, -0.02, 0.03], [1, 1, 1], **WIDE)
    assert value == pytest.approx(-1.020201, abs=1e-5)
    assert gradient == near(-0.340067, -0.340067, -0.340067)


def test_a_clipped_sequence_loses_all_its_tokens():
    value, gradient = said([0.05, -0.02, 0.03], [1, 1, 1])
    assert (value, gradient) == (pytest.approx(-1.0004), near(0, 0, 0))
    value, gradient = said([0.05, -0.02, 0.03], [-1, -1, -1])
    assert (value, gradient) == (pytest.approx(1.020201, abs=1e-5), near(0.340067, 0.340067, 0.340067))
    value, gradient = said([0.0005, -0.0002, 0.0003], [1, 1, 1])
    assert (value, gradient) == (pytest.approx(-1.0002, abs=1e-5), near(-0.3334, -0.3334, -0.3334))


def test_credit_inside_a_sequence_is_kept_by_the_token_form_and_lost_by_pooling():
    value, gradient = said([0.05, -0.02, 0.03], [1, 0, -1], **WIDE)
    assert (value, gradient) == (pytest.approx(0, abs=1e-9), near(-0.340067, 0, 0.340067))
    value, gradient = said([0.05, -0.02, 0.03], [1, 0, -1], pool="mean", **WIDE)
    assert gradient == near(0, 0, 0)


def test_one_token_is_ppo():
    for gap in (-0.5, 0.1, 0.4):
        for advantage in (1.0, -1.0):
            learner = of(gap).requires_grad_()
            clipped(learner, of(0), of(advantage)).loss.sum().backward()
            assert said([gap], [advantage], **WIDE)[1] == pytest.approx(learner.grad.tolist())


def test_a_turn_may_be_the_sequence():
    _, gradient = said([0.3, 0.3, -0.01], [1, 1, 1], turns=[0, 0, 1], level="turn", **WIDE)
    assert gradient[:2] == [0, 0]  # the first turn is beyond its bound, whatever the second does
    assert gradient[2] == pytest.approx(-(2.718281828**-0.01) / 3, abs=1e-6)


def test_beyond_its_bound_a_sequence_has_neither_more_value_nor_a_gradient():
    value, gradient = said([12.0, 14.0], [-1, -1], **WIDE)
    assert (value, gradient) == (pytest.approx(2.718281828459045**10), [0, 0])
    told = gspo(of(12, 14), of(0, 0), of(-1, -1), whole(0, 0), whole(0, 0)).metrics["policy/ratio"]
    assert told.tolist() == pytest.approx([2.718281828459045**10] * 2)
    _, gradient = said([9.0, 10.0], [-1, -1], **WIDE)
    assert gradient == pytest.approx([2.718281828459045**9.5 / 2] * 2)


def test_one_improbable_token_counts_in_the_mean_as_it_is():
    value, _ = said([-30.0, 0, 0, 0], [1, 1, 1, 1], **WIDE)
    assert value == pytest.approx(-(2.718281828459045**-7.5))


def test_means_over_keys():
    assert mean_of(of(1, 3, 10), whole(0, 0, 4)).tolist() == [2, 2, 10]


def test_without_a_token_there_is_no_turn_either():
    assert gspo(of(), of(), of(), whole(), whole(), level="turn").loss.tolist() == []


def test_the_second_turn_of_one_sequence_is_not_the_first_of_the_next():
    # turns (0, 1) and (1, 0) with gaps .3 and −.1 each have a ratio of their own
    found = gspo(of(0.3, -0.1), of(0, 0), of(-1, -1), whole(0, 1), whole(1, 0), level="turn", **WIDE)
    assert found.loss.tolist() == near(2.718281828**0.3, 2.718281828**-0.1)
