"""A teacher's word on one's own tokens."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.objectives import distilled, distilled_now, teacher_advantages, top_k_kl


def test_as_an_advantage():
    now = of(0.12).log().requires_grad_()
    found = distilled(now, of(0.1).log(), of(0.4).log(), of(0))
    found.loss.sum().backward()
    assert found.metrics["distillation/advantage"].item() == pytest.approx(1.386294, abs=1e-6)
    assert found.loss.item() == pytest.approx(-1.663553, abs=1e-6)
    assert now.grad.item() == pytest.approx(-1.663553, abs=1e-6)


def test_with_rewards_it_is_the_sum_of_both():
    plain = distilled(of(0.1).log(), of(0.1).log(), of(0.4).log(), of(0.5), reward_weight=1.0)
    assert plain.loss.item() == pytest.approx(-1.886294, abs=1e-6)
    own = distilled(of(-1), of(-1), of(-1), of(0.5), reward_weight=1.0)
    assert own.loss.item() == -0.5  # a row without a hint has the reward's part alone


def test_by_the_present_policy():
    now = of(0.12).log().requires_grad_()
    found = distilled_now(now, of(0.1).log(), of(0.4).log())
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(-1.444734, abs=1e-6)
    assert now.grad.item() == pytest.approx(-1.444403, abs=1e-6)
    other = distilled_now(of(0.3).log(), of(0.25).log(), of(0.4).log(), pull=0.0)
    assert other.loss.item() == pytest.approx(-0.345218, abs=1e-6)


def test_tokens_that_fell_far_keep_the_pull_alone():
    found = distilled_now(of(0.2).log(), of(0.5).log(), of(0.4).log())
    assert found.loss.item() == pytest.approx(1e-3 * float(of(0.4).log()) ** 2, abs=1e-9)


def test_one_token_cannot_dominate():
    assert teacher_advantages(of(-30, -1), of(-1, -30)).tolist() == [-10, 10]


def test_the_teachers_likeliest_tokens_and_a_bin_for_the_rest():
    logits = of(0.6, 0.3, 0.1).log().unsqueeze(0).requires_grad_()
    top, teacher = whole(0, 1).unsqueeze(0), of(0.5, 0.4).log().unsqueeze(0)
    loss = top_k_kl(logits, top, teacher)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.023088, abs=1e-6)
    assert logits.grad[0].tolist() == pytest.approx([0.095540, -0.093231, -0.002309], abs=1e-6)
    other = top_k_kl(logits.detach(), top, of(0.5, 0.2).log().unsqueeze(0))
    assert other.item() == pytest.approx(0.121171, abs=1e-6)


def test_a_policy_that_is_its_teacher_has_nothing_to_learn():
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    top = logits.topk(3).indices
    own = logits.log_softmax(-1).gather(-1, top)
    assert top_k_kl(logits, top, own).tolist() == pytest.approx([0] * 4, abs=1e-9)
