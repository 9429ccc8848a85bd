"""Losses on stored and fresh episodes."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms.objectives import (
    hybrid_weight,
    pessimistic_value,
    reptile_step,
    simulation_penalty,
)


def test_critic_loss_of_fresh_and_stored_turns():
    # (.5 − .7)² + ½ (.4 − (.1 + .9 · .6))²
    assert (0.5 - 0.7) ** 2 + hybrid_weight(1, 1) * (0.4 - (0.1 + 0.9 * 0.6)) ** 2 == pytest.approx(0.0688)
    assert hybrid_weight(1, 1, offline_weight=0) == 0


def test_errors_are_means_per_kind():
    # (.04 + .16) / 2 + 2 (.09 + .25 + .01) / 3, as one sum over two fresh turns
    weight = hybrid_weight(2, 3, offline_weight=2.0)
    assert (0.2 + weight * 0.35) / 2 == pytest.approx(0.1 + 0.7 / 3)
    assert hybrid_weight(5, 0) == 0
    assert hybrid_weight(0, 2) == 0.25


def test_reptile_step_interpolates_toward_inner_weights():
    assert reptile_step(of(1), of(1.5)).item() == pytest.approx(1.05)


def test_worked_numbers_of_pessimistic_values():
    ensemble = of(1, 1.2, 0.8).unsqueeze(1)
    assert pessimistic_value(ensemble).item() == 0.8
    assert pessimistic_value(ensemble, by="deviation").item() == pytest.approx(0.836701, abs=1e-6)


def test_each_value_has_its_own_ensemble():
    # 1 and 3: mean 2, deviation 1; 5 and 5: mean 5, none
    values = torch.stack([of(1, 5), of(3, 5)])
    assert pessimistic_value(values).tolist() == [1, 5]
    assert pessimistic_value(values, by="deviation", strength=0.5).tolist() == [1.5, 5]


def test_simulated_values_are_penalized_by_the_dynamics_gap():
    weights = of(1, 2, 0).softmax(0)
    assert weights.tolist() == pytest.approx([0.244728, 0.665241, 0.090031], abs=1e-6)
    assert simulation_penalty(of(1, 2, 0), of(0.5, 0.9, 0.2), of(0.6)).item() == pytest.approx(0.165320, abs=1e-6)


def test_weights_of_the_penalty_receive_no_gradient():
    gaps, simulated, real = of(1, 2).requires_grad_(), of(0.5, 0.9).requires_grad_(), of(0.6, 0.2).requires_grad_()
    simulation_penalty(gaps, simulated, real).backward()
    assert gaps.grad is None
    assert real.grad.tolist() == [-0.5, -0.5]
    assert simulated.grad.sum().item() == pytest.approx(1)
