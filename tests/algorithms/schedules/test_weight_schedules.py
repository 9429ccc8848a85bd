"""Schedules of loss weights over a run."""

import pytest

from whetstone.algorithms.schedules import adaptive_weight, mixing_weight, phase_weight, replay_weight


def test_imitation_weight_decays_to_a_positive_minimum():
    weights = [mixing_weight(step) for step in (0, 87, 175, 350, 400, 500)]
    assert weights == pytest.approx([0.9, 0.776866, 0.475, 0.05, 0.05, 0.05], abs=1e-6)
    assert [mixing_weight(step, warmup=2) for step in (0, 1, 2)] == pytest.approx([0.45, 0.9, 0.9])


def test_replay_weight_rises_and_stays():
    assert [replay_weight(step) for step in (0, 50, 100, 200, 250)] == pytest.approx([0, 0.146447, 0.5, 1, 1], abs=1e-6)
    assert replay_weight(25, steps=100) == pytest.approx(0.146447, abs=1e-6)


def test_the_phase_weight_of_the_released_code():
    weights = [phase_weight(epoch, 150) for epoch in (0, 37, 75, 76, 112, 150)]
    assert weights == pytest.approx([1, 0.874563, 0.827067, 0.768632, 0.182110, 0.039830], abs=1e-6)
    assert phase_weight(150, 150, form="rise") == 1
    assert phase_weight(3, 150, form="constant") == 1


def test_half_of_the_epochs_is_rounded_down_and_weights_stay_constant_outside():
    weights = [phase_weight(epoch, 3) for epoch in range(4)]
    assert weights == pytest.approx([1, 0.827067, 0.178504, 0.039830], abs=1e-6)
    assert phase_weight(2, 5) == pytest.approx(0.827067, abs=1e-6)
    assert (phase_weight(9, 4), phase_weight(-1, 4)) == (phase_weight(4, 4), 1)
    assert [phase_weight(epoch, 1) for epoch in (0, 1)] == pytest.approx([1, 0.039830], abs=1e-6)
    assert phase_weight(0, 0) == 1


def test_adaptive_weight_moves_the_kl_toward_its_target():
    def adapt(kl):
        return adaptive_weight(0.2, kl, target=0.1, samples=256)

    # .2 (1 ± .2 · 256 / 10,000) and .2 (1 + .1 · 256 / 10,000)
    assert [adapt(kl) for kl in (0.2, 0.05, 0.11)] == pytest.approx([0.201024, 0.198976, 0.200512], rel=1e-12)
    assert adaptive_weight(0.2, 0.2, target=0.1, samples=256, horizon=512) == pytest.approx(0.2 * 1.1)
