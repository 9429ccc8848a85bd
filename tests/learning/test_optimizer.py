"""Optimisers and their schedules."""

import importlib.util
import math

import pytest
import torch

from whetstone.errors import RecipeError
from whetstone.learning.optimizer import Optimizers, schedule
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings


def test_the_schedule_rises_stays_and_falls():
    # 10 steps: warm-up over 2, decay over 3
    rates = [schedule(i, 10, warmup_fraction=0.2, decay_fraction=0.3) for i in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_without_warm_up_and_decay_the_rate_is_constant():
    assert {schedule(i, 5, warmup_fraction=0, decay_fraction=0) for i in range(5)} == {1.0}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_every_step_of_a_short_stage_moves_something(steps):
    assert all(schedule(i, steps, warmup_fraction=0.5, decay_fraction=0.5) > 0 for i in range(steps))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_going_on_from_a_saved_state_gives_the_same_weights(optimizer):
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
    assert all(torch.equal(a, b) for a, b in zip(straight.trained(), second.trained(), strict=True))


def test_muon_takes_the_inner_matrices_and_leaves_embeddings_and_gains_to_adamw():
    policy = build_tiny(["x"], hidden=16, heads=2, layers=2, intermediate=16)
    model = policy.model
    adamw, muon = Optimizers(policy, OptimizerSettings(optimizer="muon"))._optimizers
    assert sum(len(g["params"]) for g in muon.param_groups) == 2 * 7  # q, k, v, o, gate, up, down
    outer = [p for g in adamw.param_groups for p in g["params"]]
    assert any(p is model.get_input_embeddings().weight for p in outer)
    assert len(outer) + 14 == len(list(model.parameters()))


def test_half_a_cosine_down_and_the_straight_line():
    shape = {"warmup_fraction": 0.0, "decay_fraction": 1.0}
    straight = [schedule(done, 4, **shape) for done in range(4)]
    assert straight == pytest.approx([0.8, 0.6, 0.4, 0.2])
    waved = [schedule(done, 4, decay="cosine", **shape) for done in range(4)]
    assert waved == pytest.approx([(1 - math.cos(math.pi * factor)) / 2 for factor in straight])


def test_states_in_eight_bits_ask_for_their_library():
    policy = build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16)
    if importlib.util.find_spec("bitsandbytes") is None:
        with pytest.raises(RecipeError, match="adamw_8bit needs bitsandbytes: pip install"):
            Optimizers(policy, OptimizerSettings(optimizer="adamw_8bit"))
    else:
        assert Optimizers(policy, OptimizerSettings(optimizer="adamw_8bit")).rate() > 0
