"""Optimizers and their schedules."""

import importlib.util
import math
from types import SimpleNamespace

import pytest
import torch

from whetstone.errors import RecipeError
from whetstone.learning.learner import rate_scale
from whetstone.learning.optimizer import Optimizers, schedule_factor
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings, ReinforcementSettings


def test_schedule_rises_stays_and_falls():
    # 10 steps: warm-up over 2, decay over 3
    rates = [schedule_factor(i, 10, warmup_fraction=0.2, decay_fraction=0.3) for i in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_rate_is_constant_without_warm_up_and_decay():
    assert {schedule_factor(i, 5, warmup_fraction=0, decay_fraction=0) for i in range(5)} == {1.0}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_every_step_of_a_short_stage_has_a_positive_rate(steps):
    assert all(schedule_factor(i, steps, warmup_fraction=0.5, decay_fraction=0.5) > 0 for i in range(steps))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resume_from_a_saved_state_gives_the_same_weights(optimizer):
    def policy():
        return build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16, seed=1)

    def push(model, optimizers, n):
        for _ in range(n):
            torch.manual_seed(optimizers.done)
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizers.update()
            optimizers.advance()

    settings = OptimizerSettings(steps=6, optimizer=optimizer)
    straight = policy()
    push(straight.model, Optimizers(straight, settings), 6)
    first = policy()
    optimizers = Optimizers(first, settings)
    push(first.model, optimizers, 3)
    second = policy()
    second.model.load_state_dict(first.model.state_dict())
    resumed = Optimizers(second, settings)
    resumed.load_state_dict(optimizers.state_dict())
    push(second.model, resumed, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(straight.trainable_parameters(), second.trainable_parameters(), strict=True)
    )


def test_muon_trains_inner_matrices_and_adamw_the_rest():
    policy = build_tiny(["x"], hidden=16, heads=2, layers=2, intermediate=16)
    model = policy.model
    adamw, muon = Optimizers(policy, OptimizerSettings(optimizer="muon"))._optimizers
    assert sum(len(g["params"]) for g in muon.param_groups) == 2 * 7  # q, k, v, o, gate, up, down
    outer = [p for g in adamw.param_groups for p in g["params"]]
    assert any(p is model.get_input_embeddings().weight for p in outer)
    assert len(outer) + 14 == len(list(model.parameters()))


def test_cosine_and_linear_decay():
    shape = {"warmup_fraction": 0.0, "decay_fraction": 1.0}
    straight = [schedule_factor(done, 4, **shape) for done in range(4)]
    assert straight == pytest.approx([0.8, 0.6, 0.4, 0.2])
    waved = [schedule_factor(done, 4, decay="cosine", **shape) for done in range(4)]
    assert waved == pytest.approx([(1 - math.cos(math.pi * factor)) / 2 for factor in straight])


def test_eight_bit_states_require_their_library():
    policy = build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16)
    if importlib.util.find_spec("bitsandbytes") is None:
        with pytest.raises(RecipeError, match="adamw_8bit needs bitsandbytes: pip install"):
            Optimizers(policy, OptimizerSettings(optimizer="adamw_8bit"))
    else:
        assert Optimizers(policy, OptimizerSettings(optimizer="adamw_8bit")).rate() > 0


def test_a_rate_scale_shortens_the_step_of_the_policy():
    def moved(scale):
        policy = build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16, seed=1)
        optimizers = Optimizers(policy, OptimizerSettings(optimizer="adamw", warmup_fraction=0, learning_rate=0.1))
        optimizers.rate_scale = scale
        weight = policy.trainable_parameters()[0]
        before = weight.detach().clone()
        for parameter in policy.trainable_parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizers.update()
        return (weight - before).abs().max().item(), optimizers.rate()

    assert moved(1.0) == pytest.approx((0.1, 0.1))  # the first step of Adam has the length of the rate
    assert moved(0.25) == pytest.approx((0.025, 0.025))


@pytest.mark.parametrize(("full", "expected"), [(None, 1.0), (8, 0.25), (2, 1.0), (1, 1.0)])
def test_the_rate_scale_counts_groups_with_advantages(full, expected):
    def group(*advantages):
        return [SimpleNamespace(segment=SimpleNamespace(advantages=each)) for each in advantages]

    groups = [group([0.0, 0.5], [0.0]), group([0.0], [0.0, 0.0]), group([], None), group([-1.0])]  # 2 of 4
    assert rate_scale(groups, ReinforcementSettings(full_rate_groups=full)) == expected
