"""Stored episodes beside fresh ones."""

import pytest

from tests_batches import of
from whetstone.algorithms.objectives import (
    balanced_weights,
    hybrid_critic,
    interpolated,
    pessimistic,
    simulation_penalty,
)


def test_a_critic_of_both():
    fresh, returns, stored, target = of(0.5), of(0.7), of(0.4), of(0.1 + 0.9 * 0.6)
    assert hybrid_critic(fresh, returns, stored, target).item() == pytest.approx(0.0688)
    assert hybrid_critic(fresh, returns, of(float("nan")), target, offline_weight=0).item() == pytest.approx(0.04)


def test_a_step_toward_what_an_inner_loop_found():
    assert interpolated(of(1), of(1.5)).item() == pytest.approx(1.05)


def test_pessimism():
    ensemble = of(1, 1.2, 0.8).unsqueeze(1)
    assert pessimistic(ensemble).item() == 0.8
    assert pessimistic(ensemble, by="deviation").item() == pytest.approx(0.836701, abs=1e-6)


def test_a_balance_between_imitation_and_improvement():
    found = balanced_weights(of(0.5, 0.5, 0.5), of(0.5, 1, 3))
    assert found.tolist() == pytest.approx([1.284025, 1.648721, 4.481689], abs=1e-6)
    assert balanced_weights(of(100), of(1)).item() == 20


def test_simulated_values_are_held_down_where_the_simulator_is_off():
    weights = of(1, 2, 0).softmax(0)
    assert weights.tolist() == pytest.approx([0.244728, 0.665241, 0.090031], abs=1e-6)
    assert simulation_penalty(of(1, 2, 0), of(0.5, 0.9, 0.2), of(0.6)).item() == pytest.approx(0.165320, abs=1e-6)
