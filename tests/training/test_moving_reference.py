"""A moving reference (Polyak average of the policy): worked numbers, and the same after a kill."""

import copy

import pytest
import torch

from support.small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.inference import Member
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import LearningSpec
from whetstone.policies import Policy, build_tiny
from whetstone.recipe import OptimizerSettings, ReinforcementSettings, load_recipe
from whetstone.reporting import Progress
from whetstone.training import final_policy, train

MOVES = [
    "reinforcement.reference_kl=0.1",
    "reinforcement.reference_sync_steps=2",
    "reinforcement.reference_mixup_alpha=0.6",
]


def trainer():
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    other = Policy(copy.deepcopy(policy.model).requires_grad_(False), policy.tokenizer)
    return ModelTrainer(policy, OptimizerSettings(), members={"reference": Member("reference", lambda: other)})


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def test_worked_numbers():
    model_trainer = trainer()
    filled(model_trainer.policy.model, 1.0)
    filled(model_trainer.reference, 0.0)
    model_trainer.move_reference(0.25)
    assert all((p == 0.25).all() for p in model_trainer.reference.parameters())
    model_trainer.move_reference(0.25)
    assert all((p == 0.4375).all() for p in model_trainer.reference.parameters())  # 0.75 · 0.25 + 0.25
    model_trainer.move_reference(1.0)
    assert all((p == 1).all() for p in model_trainer.reference.parameters())
    assert all((p == 1).all() for p in model_trainer.policy.model.parameters())  # which was not moved


def test_it_moves_only_at_every_nth_step():
    model_trainer = trainer()
    settings = ReinforcementSettings(reference_kl=0.1, reference_sync_steps=3, reference_mixup_alpha=1.0)
    learner = LocalLearner(model_trainer, LearningSpec(settings, credit=None, terms=()))
    filled(model_trainer.reference, 0.0)
    moved = []
    for step in range(1, 7):
        filled(model_trainer.policy.model, float(step))
        learner.end_step()
        moved.append(next(model_trainer.reference.parameters()).flatten()[0].item())
    assert moved == [0, 0, 3, 3, 3, 6]


def test_only_a_moved_reference_is_in_the_state():
    model_trainer, other = trainer(), trainer()
    assert "reference" not in model_trainer.state_dict()
    filled(model_trainer.policy.model, 2.0)
    model_trainer.move_reference(0.5)
    other.load_state_dict(model_trainer.state_dict())
    pairs = zip(model_trainer.reference.parameters(), other.reference.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert "reference" in other.state_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["reinforcement.reference_sync_steps=2"], "has no effect: nothing reads the reference"),
        (["reinforcement.reference_mixup_alpha=0.5", "reinforcement.reference_kl=0.1"], "has no effect: .*not set"),
        ([*MOVES, "policy.lora={rank: 2}"], "with adapters .* which does not change"),
    ],
)
def test_setting_without_effect_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        assemble(load_recipe("demo", [*SMALL, "ablations=null", *changes])).check()


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_weights(tmp_path):
    small = [*SMALL, "ablations=null", TEACHING, "reinforcement.steps=7", "reinforcement.checkpoint_interval_steps=1"]
    resolved = load_recipe("demo", [*small, *MOVES])
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    for steps in (3, 2):
        with pytest.raises(Stopped):
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=Progress(quiet=True))
    train(load_recipe("demo", [*small, MOVES[0]]), tmp_path / "still", progress=Progress(quiet=True))
    undisturbed, killed, still = (
        final_policy(tmp_path / name).model.state_dict() for name in ("whole", "killed", "still")
    )
    assert all(torch.equal(value, killed[name]) for name, value in undisturbed.items())
    assert not all(torch.equal(value, still[name]) for name, value in undisturbed.items())
