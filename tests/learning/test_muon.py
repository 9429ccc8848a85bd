"""Muon and the precision of its Newton-Schulz iteration."""

import pytest
import torch

from whetstone.learning.muon import Muon, newton_schulz
from whetstone.learning.optimizer import Optimizers
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def trained(optimizer, shapes, steps=4, **options):
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    muon = optimizer(matrices, lr=0.02, **options)
    for _ in range(steps):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape, generator=generator)
        muon.step()
    return matrices


def by_hand(shapes, steps, *, lr, decay, adjust):
    """Compute the algorithm of Jordan et al. in float64 without torch.optim."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator).double() for shape in shapes]
    momenta = [torch.zeros_like(weight) for weight in weights]
    for _ in range(steps):
        for i, weight in enumerate(weights):
            gradient = torch.randn(weight.shape, generator=generator).double()
            momenta[i] = 0.95 * momenta[i] + 0.05 * gradient
            x = 0.05 * gradient + 0.95 * momenta[i]
            x = x / torch.linalg.matrix_norm(x)
            a, b, c = COEFFICIENTS
            for _ in range(5):
                x = a * x + (b * (x @ x.T) + c * (x @ x.T) @ (x @ x.T)) @ x
            rows, columns = weight.shape
            factor = 0.2 * max(rows, columns) ** 0.5 if adjust == "match_rms_adamw" else max(1, rows / columns) ** 0.5
            weights[i] = weight * (1 - lr * decay) - lr * factor * x
    return weights


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_float32_steps_equal_the_algorithm_written_out(adjust):
    shapes = [(6, 6), (4, 10), (10, 4)]
    matrices = trained(Muon, shapes, iteration_dtype="float32", weight_decay=0.3, adjust_lr_fn=adjust)
    expected = by_hand(shapes, 4, lr=0.02, decay=0.3, adjust=adjust)
    for matrix, weight in zip(matrices, expected, strict=True):
        torch.testing.assert_close(matrix.double(), weight, atol=1e-5, rtol=1e-4)


def test_bfloat16_steps_are_pytorchs_bit_for_bit():
    shapes = [(6, 6), (4, 10), (10, 4)]
    own, reference = trained(Muon, shapes), trained(torch.optim.Muon, shapes)
    assert all(torch.equal(one, other) for one, other in zip(own, reference, strict=True))


def test_float32_and_bfloat16_differ_by_rounding_only():
    shapes = [(32, 32), (16, 48)]
    one, other = (trained(Muon, shapes, steps=1, iteration_dtype=dtype) for dtype in ("float32", "bfloat16"))
    for a, b in zip(one, other, strict=True):
        assert 0 < (a - b).abs().max() < 0.02 * 0.1


def test_singular_values_come_close_to_one():
    values = torch.linalg.svdvals(newton_schulz(torch.randn(20, 40), COEFFICIENTS, 5))
    assert values.min() > 0.5
    assert values.max() < 1.3


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_a_loaded_state_keeps_the_precision_it_was_made_in(stored):
    policy = build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16)
    state = Optimizers(policy, OptimizerSettings(optimizer=f"muon_{stored}")).state_dict()
    other = "muon_float32" if stored == "bfloat16" else "muon_bfloat16"
    resumed = Optimizers(policy, OptimizerSettings(optimizer=other))
    resumed.load_state_dict(state)
    assert {group["iteration_dtype"] for group in resumed.all_optimizers[-1].param_groups} == {stored}


def test_a_state_without_a_precision_was_made_in_bfloat16():
    matrix = torch.nn.Parameter(torch.randn(3, 3))
    state = torch.optim.Muon([matrix]).state_dict()
    muon = Muon([matrix], iteration_dtype="float32")
    muon.load_state_dict(state)
    assert muon.param_groups[0]["iteration_dtype"] == "bfloat16"
