"""On-policy distillation: a teacher scores the sampled tokens."""

import math

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.objectives import (
    importance_weighted_distillation,
    on_policy_distillation,
    teacher_advantages,
    top_k_kl,
)


def test_log_ratio_to_the_teacher_as_an_advantage():
    now = of(0.12).log().requires_grad_()
    result = on_policy_distillation(now, of(0.1).log(), of(0.4).log(), of(0))
    result.loss.sum().backward()
    assert result.metrics["distillation/advantage"].item() == pytest.approx(1.386294, abs=1e-6)
    assert result.loss.item() == pytest.approx(-1.663553, abs=1e-6)
    assert now.grad.item() == pytest.approx(-1.663553, abs=1e-6)


def test_distillation_with_rewards_is_the_sum_of_both():
    plain = on_policy_distillation(of(0.1).log(), of(0.1).log(), of(0.4).log(), of(0.5), reward_weight=1.0)
    assert plain.loss.item() == pytest.approx(-1.886294, abs=1e-6)
    own = on_policy_distillation(of(-1), of(-1), of(-1), of(0.5), reward_weight=1.0)
    assert own.loss.item() == -0.5  # a row without a hint has only the reward term


def test_importance_weights_of_the_current_policy():
    now = of(0.12).log().requires_grad_()
    result = importance_weighted_distillation(now, of(0.1).log(), of(0.4).log())
    result.loss.sum().backward()
    assert result.loss.item() == pytest.approx(-1.444734, abs=1e-6)
    assert now.grad.item() == pytest.approx(-1.444403, abs=1e-6)
    other = importance_weighted_distillation(of(0.3).log(), of(0.25).log(), of(0.4).log(), pull=0.0)
    assert other.loss.item() == pytest.approx(-0.345218, abs=1e-6)


def test_tokens_beyond_the_bound_keep_only_the_regularization():
    result = importance_weighted_distillation(of(0.2).log(), of(0.5).log(), of(0.4).log())
    assert result.loss.item() == pytest.approx(1e-3 * float(of(0.4).log()) ** 2, abs=1e-9)


def test_bound_is_inclusive():
    # π ½, μ 1, teacher 1: a = log 2, L = −a / 2
    result = importance_weighted_distillation(of(0.5).log(), of(0).clone(), of(0).clone(), low=0.5, pull=0.0)
    assert result.loss.item() == pytest.approx(-math.log(2) / 2)
    assert result.metrics["policy/clip_fraction"].tolist() == [0]


def test_teacher_advantages_are_clipped():
    assert teacher_advantages(of(-30, -1), of(-1, -30)).tolist() == [-10, 10]


def test_top_k_tokens_of_the_teacher_and_one_bin_for_the_rest():
    logits = of(0.6, 0.3, 0.1).log().unsqueeze(0).requires_grad_()
    top, teacher = integers(0, 1).unsqueeze(0), of(0.5, 0.4).log().unsqueeze(0)
    loss = top_k_kl(logits, top, teacher)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.023088, abs=1e-6)
    assert logits.grad[0].tolist() == pytest.approx([0.095540, -0.093231, -0.002309], abs=1e-6)
    other = top_k_kl(logits.detach(), top, of(0.5, 0.2).log().unsqueeze(0))
    assert other.item() == pytest.approx(0.121171, abs=1e-6)


def test_policy_equal_to_its_teacher_has_zero_loss():
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    top = logits.topk(3).indices
    own = logits.log_softmax(-1).gather(-1, top)
    assert top_k_kl(logits, top, own).tolist() == pytest.approx([0] * 4, abs=1e-9)


def test_mass_of_the_rest_is_at_least_one_ten_millionth():
    ids = integers(0, 1).unsqueeze(0)
    some, none = of(0.3, 0.4).log().unsqueeze(0), of(0.5, 0.5).log().unsqueeze(0)
    logits = of(0.3, 0.4, 0.3).log().unsqueeze(0)
    # .3 log .3/.5 + .4 log .4/.5 + .3 log .3/1e-7
    expected = 0.3 * math.log(0.6) + 0.4 * math.log(0.8) + 0.3 * math.log(3e6)
    assert top_k_kl(logits, ids, none).item() == pytest.approx(expected, abs=1e-6)
    # reversed: .5 log .5/.3 + .5 log .5/.4 + 1e-7 log 1e-7/.3
    expected = 0.5 * math.log(5 / 3) + 0.5 * math.log(1.25) + 1e-7 * math.log(1e-7 / 0.3)
    assert top_k_kl(none, ids, some).item() == pytest.approx(expected, abs=1e-8)


def test_low_precision_gives_finite_numbers():
    sure = torch.tensor([[0.0, -100.0, -100.0]], dtype=torch.bfloat16, requires_grad=True)
    loss = top_k_kl(sure, integers(0, 1).unsqueeze(0), torch.tensor([[-0.7, -0.7]], dtype=torch.bfloat16))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert sure.grad.isfinite().all()


def test_teacher_receives_no_gradient():
    logits, teacher = of(0.6, 0.4).log().unsqueeze(0).requires_grad_(), of(0.5, 0.5).log().unsqueeze(0).requires_grad_()
    top_k_kl(logits, integers(0, 1).unsqueeze(0), teacher).sum().backward()
    assert teacher.grad is None
    assert not teacher_advantages(teacher, teacher).requires_grad


def test_positions_are_computed_separately():
    first, second = of(0.6, 0.3, 0.1).log(), of(0.2, 0.2, 0.6).log()
    teacher = torch.stack([of(0.5, 0.4).log(), of(0.1, 0.6).log()])
    ids = torch.stack([integers(0, 1), integers(1, 2)])
    both = top_k_kl(torch.stack([first, second]), ids, teacher)
    assert both.shape == (2,)
    for k, one in enumerate((first, second)):
        assert both[k].item() == pytest.approx(top_k_kl(one[None], ids[k][None], teacher[k][None]).item())
