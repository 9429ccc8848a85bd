"""`clip_cov` removes the gradient of few tokens with a high covariance."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms import clipped
from whetstone.algorithms.advantage_transforms import clip_cov, covariances

A, OLD = of(1, 1, -1, -1), of(-0.1, -3, -0.3, -3)


def test_covariances():
    assert covariances(A, OLD).tolist() == pytest.approx([1.5, -1.4, -1.3, 1.4])
    assert covariances(A, of(-0.1, -3, -0.1, -3)).tolist() == pytest.approx([1.45, -1.45, -1.45, 1.45])
    # mean credit 1, mean log-prob −1: (2 − 1)(−½ + 1), (0 − 1)(−2 + 1), (1 − 1)(−½ + 1)
    assert covariances(of(2, 0, 1), of(-0.5, -2, -0.5)).tolist() == pytest.approx([0.5, 1, 0])


def test_one_of_the_candidates_is_sampled():
    assert clip_cov(A, OLD, of(0.1, 0, 0, 0.9)).tolist() == [0, 1, -1, -1]
    assert clip_cov(A, OLD, of(0.9, 0, 0, 0.1)).tolist() == [1, 1, -1, 0]


def test_clipped_objective_gives_the_loss_of_the_paper():
    now = OLD.clone().requires_grad_()
    loss = clipped(now, OLD, clip_cov(A, OLD, of(0.1, 0, 0, 0.9))).loss.mean()
    loss.backward()
    assert loss.item() == pytest.approx(0.25)
    assert now.grad.tolist() == pytest.approx([0, -0.25, 0.25, 0.25])


def test_without_a_candidate_nothing_changes():
    assert torch.equal(clip_cov(A, OLD, of(0, 0, 0, 0), low=5.0), A)
    assert clip_cov(of(), of(), of()).tolist() == integers().tolist()


def test_fraction_is_of_all_tokens():
    draws = torch.linspace(0, 1, 100, dtype=torch.float64)
    advantages, old = torch.ones(100).double(), torch.zeros(100).double()
    advantages[:50], old[:50] = -1, -4.0  # every covariance is 2
    assert int((clip_cov(advantages, old, draws, fraction=0.1) == 0).sum()) == 10


def test_covariances_equal_to_a_bound_are_no_candidates():
    # both covariances are exactly 1
    credit, old = of(1, -1), of(-1, -3)
    assert clip_cov(credit, old, of(0, 1), low=1.0, high=2.0).tolist() == [1, -1]
    assert clip_cov(credit, old, of(0, 1), low=0.0, high=1.0).tolist() == [1, -1]
    assert clip_cov(credit, old, of(0, 1), low=0.0, high=2.0).tolist() == [0, -1]
