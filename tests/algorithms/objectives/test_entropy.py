"""Entropy bonus and entropy band."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms.objectives import entropy_bonus, entropy_smoothing, usual_entropy

H, USUAL = (0.2, 0.5, 1.4), of(0.5, 0.5, 0.5)


def smoothing_and_gradient(**options):
    """Return the loss term at weight 0.001 and its gradient."""
    entropies = of(*H).requires_grad_()
    loss = 0.001 * entropy_smoothing(entropies, USUAL, **options).loss.mean()
    loss.backward()
    return loss.item(), entropies.grad.tolist()


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-6)


def test_entropy_of_two_outcomes_and_its_gradient():
    logits = of(0.8, 0.2).log().requires_grad_()
    p = logits.softmax(0)
    entropy = -(p * p.log()).sum()
    assert entropy.item() == pytest.approx(0.500402, abs=1e-6)
    entropy_bonus(entropy.unsqueeze(0)).loss.sum().backward()
    assert logits.grad.tolist() == pytest.approx([0.221807, -0.221807], abs=1e-6)


def test_indicator_form_of_the_band_has_no_gradient():
    value, gradient = smoothing_and_gradient(form="indicator", strength=1.0)
    assert value == pytest.approx(-0.000633, abs=1e-6)
    assert gradient == near(*[-0.001 / 3] * 3)
    bonus = of(*H).requires_grad_()
    (0.001 * entropy_bonus(bonus).loss.mean()).backward()
    assert gradient == near(*bonus.grad.tolist())


def test_hinge_reduces_the_bonus_above_the_band_and_increases_it_below():
    value, gradient = smoothing_and_gradient(strength=1.0)
    assert value == pytest.approx(-0.000667, abs=1e-6)
    assert gradient == near(-0.000367, -0.000333, -0.0003)
    value, gradient = smoothing_and_gradient(size=1.0, strength=1.0)
    assert value == pytest.approx(-0.000367, abs=1e-6)
    assert gradient == near(-0.000667, -0.000333, 0)


def test_hinge_weight_above_one_lowers_entropy_above_the_band():
    assert smoothing_and_gradient()[1][2] > 0  # default: b = 2


def test_without_history_there_is_no_band():
    entropies = of(*H)
    nowhere = torch.full((3,), torch.nan)
    assert torch.equal(entropy_smoothing(entropies, nowhere).loss, entropy_bonus(entropies).loss)


def test_usual_entropy_is_the_mean_over_tokens_of_the_window():
    past, counts = torch.tensor([[1.0, 0.0], [5.0, 0.0]]), torch.tensor([[2.0, 0.0], [4.0, 0.0]])
    result = usual_entropy(past, counts)
    assert result[0].item() == 1.0
    assert result[1].isnan()


def test_metrics_contain_the_bonus_and_the_fraction_outside_the_band():
    entropies = of(*H).requires_grad_()
    metrics = entropy_bonus(entropies).metrics
    assert list(metrics) == ["policy/entropy_bonus"]
    assert metrics["policy/entropy_bonus"].tolist() == list(H)
    for form in ("hinge", "indicator"):
        outside = entropy_smoothing(entropies, of(0.5, 0.5, torch.nan), form=form).metrics
        assert list(outside) == ["policy/entropy_out_of_band_fraction"]
        assert outside["policy/entropy_out_of_band_fraction"].tolist() == [
            1,
            0,
            0,
        ]  # .2 is below .4; the third has no history
        for metric in (*metrics.values(), *outside.values()):
            assert not metric.requires_grad


@pytest.mark.parametrize("form", ["hinge", "indicator"])
def test_band_has_the_precision_of_the_entropies_and_its_history_no_gradient(form):
    entropies, usual = torch.tensor(H, requires_grad=True), torch.tensor([0.5, 0.5, 0.5], requires_grad=True)
    result = entropy_smoothing(entropies, usual, form=form)
    result.loss.sum().backward()
    assert usual.grad is None
    assert {result.loss.dtype, result.metrics["policy/entropy_out_of_band_fraction"].dtype} == {torch.float32}


def test_edges_are_outside_the_band_in_the_indicator_form():
    # κ H̄ = ½ and 2; L = −(H − 20 · .1)
    result = entropy_smoothing(of(0.5, 1, 2), of(1, 1, 1), low=0.5, high=2.0, form="indicator")
    assert result.loss.tolist() == near(1.5, -1, 0)


def test_hinge_is_proportional_to_the_distance_from_the_band():
    # κ_l H̄ = .4 and κ_r H̄ = .6: P = .1 · .2, 0, .1 · .8; L = −H + 20 P
    assert entropy_smoothing(of(*H), USUAL).loss.tolist() == near(-0.2 + 0.4, -0.5, -1.4 + 1.6)
