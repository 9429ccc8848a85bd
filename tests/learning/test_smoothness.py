"""Ensembles of critics, and consistency under embedding noise."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from support.episodes import group
from support.segments import segment
from whetstone.algorithms import TokenLoss
from whetstone.algorithms.advantages import turn_gae
from whetstone.algorithms.objectives import consistency, pessimistic_value
from whetstone.learning.columns import Columns, critic_heads
from whetstone.learning.credit_assignment import CreditParts, assign_credit
from whetstone.learning.embedding_noise import EmbeddingNoise
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.token_index import index_groups
from whetstone.policies import Critic, build_critic, build_tiny
from whetstone.recipe import OptimizerSettings

SEGMENTS = [
    replace(segment(ids, [0, 1, 0, 1, 1]), trajectory_id=str(k))
    for k, ids in enumerate([(1, 2, 3, 4, 5), (1, 2, 3, 9, 8), (7, 2, 3, 4, 5)])
]


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)


def test_noise_of_a_token_is_position_independent_and_has_the_given_scale():
    noise, ids = EmbeddingNoise(0.1, seed=3), torch.tensor([[4, 9, 4], [9, 100_000, 4]])
    embedded = torch.full((2, 3, 512), 2.0)
    moved = noise.compute_noise(ids, embedded)
    assert torch.equal(moved[0, 0], moved[1, 2])
    assert torch.equal(moved[0, 1], moved[1, 0])
    assert moved[1, 1].std().item() == pytest.approx(0.2, rel=0.15)
    assert abs(moved[0, 0] @ moved[0, 1]) < 0.2 * moved[0, 0].norm() * moved[0, 1].norm()
    assert not torch.equal(EmbeddingNoise(0.1, seed=4).compute_noise(ids, embedded), moved)


def gradient_of(loss_of, budget, noise):
    """Return the gradient and loss of a step without updating the weights."""
    trainer = ModelTrainer(small_policy(), OptimizerSettings(micro_batch_tokens=budget, max_grad_norm=1e9))
    trainer.passes.apply = dict
    loss = trainer.step(SEGMENTS, loss_of, noise=noise)["loss/total"]
    return loss, [p.grad.clone() for p in trainer.policy.model.parameters() if p.grad is not None]


def consistency_loss(outputs, micro):
    return TokenLoss(consistency(outputs.logprobs, outputs.perturbed.logprobs).loss, {})


@pytest.mark.parametrize("budget", [1, 8192])
def test_noisy_forward_pass_equals_the_naive_one_for_any_micro_batches(budget):
    noise = EmbeddingNoise(0.3, seed=1)
    loss, gradient = gradient_of(consistency_loss, budget, noise)
    model, naive = small_policy().model, torch.zeros(())
    for each in SEGMENTS:
        ids = torch.tensor([each.tokens.ids])
        embedded = model.get_input_embeddings()(ids)
        outputs = []
        for moved in (embedded, embedded + noise.compute_noise(ids, embedded)):
            logits = model(inputs_embeds=moved).logits[0, :-1].log_softmax(-1)
            outputs.append(logits.gather(1, ids[0, 1:, None]).squeeze(1)[torch.tensor(each.action_mask[1:])])
        naive = naive + 0.5 * (outputs[0] - outputs[1]).square().sum() / 9
    naive.backward()
    assert loss == pytest.approx(naive.item(), rel=1e-4)
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    for actual, reference in zip(gradient, expected, strict=True):
        assert torch.allclose(actual, reference, atol=1e-5)


def test_noise_hooks_are_removed():
    model = small_policy().model
    with EmbeddingNoise(0.3, seed=1).add_noise(model):
        assert model.get_input_embeddings()._forward_hooks
    assert not model.get_input_embeddings()._forward_hooks


def test_members_of_an_ensemble_are_named_and_start_with_different_weights():
    heads = critic_heads(["values", "last_values", "slow_values"], ensemble=3)
    assert heads == ("values", "values#2", "values#3", "slow_values", "slow_values#2", "slow_values#3")
    values = Critic(8, heads)(torch.ones(1, 8))[0]
    assert values[0] == 0
    assert len(set(values[:3].tolist())) == 3
    assert torch.equal(values[:3], values[3:])


class ThreeCritics(ModelTrainer):
    """A learner whose three critics return different values."""

    def values(self, segments, *, temperature=1.0):
        return [torch.tensor([[1.0, 1.2, 0.8]]).repeat(sum(s.action_mask[1:]), 1) for s in segments]


@pytest.mark.parametrize(("by", "believed"), [("min", 0.8), ("deviation", 0.836701)])
def test_ensemble_is_reduced_by_the_recipe_and_members_have_separate_targets(by, believed):
    policy = small_policy()
    policy = replace(policy, critic=build_critic(policy.model, critic_heads(["values"], ensemble=3)))
    trainer = ThreeCritics(policy, OptimizerSettings())
    build_columns = partial(Columns, learner=trainer, reduce_ensemble=partial(pessimistic_value, by=by))
    estimator = partial(turn_gae, discount=1.0, trace=1.0, whiten=False)
    indexed = index_groups([group(1.0)])
    credit = assign_credit(CreditParts(estimator), indexed, 1, build_columns)
    assert credit.columns["values"].tolist() == pytest.approx([believed], abs=1e-6)
    assert credit.advantages.tolist() == pytest.approx([1 - believed] * len(credit.advantages), abs=1e-6)
    assert credit.columns["value_deviations"].tolist() == pytest.approx([0.163299], abs=1e-6)
    ((credited,),) = credit.by_group
    assert credited.value[0].tolist() == pytest.approx([1.0, 1.2, 0.8])
    assert credited.target[0].tolist() == pytest.approx([1.0] * 3)
