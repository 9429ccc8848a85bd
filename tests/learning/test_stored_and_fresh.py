"""Updates on stored and fresh groups: critic-only groups, and partial steps of the weights."""

import asyncio
import copy
from dataclasses import replace

import pytest
import torch

from whetstone.assembly import assemble
from whetstone.data.offline_episodes import mark_offline
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.rollout import GroupPlan, Independent
from whetstone.trajectory import Score

pytestmark = pytest.mark.slow
CRITIC = ["advantage={name: turn_gae, discount: 0.9}", "critic={weight: 1.0}", "reinforcement.max_grad_norm=1000"]
STORED = "reinforcement.offline_mixture={data: x, mode: critic_only, critic_weight: %s, critic_discount: 0.9}"


@pytest.fixture
def parts(small_demo):
    """Return a function that builds a learner, fresh groups and stored groups."""

    def build(*overrides):
        assembly = assemble(small_demo("rollout.group_size=3", "reinforcement.max_mismatch_kl=.inf", *overrides))
        settings = assembly.resolved.recipe.reinforcement
        learner = LocalLearner(ModelTrainer(assembly.policy, settings), assembly.learning_spec(settings))

        async def sampled():
            engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
            try:
                collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
                plans = [GroupPlan(assembly.source.task(k), seed=3, name=f"group-{k}/") for k in range(3)]
                return [await collector.group(plan, Independent(group_size=3)) for plan in plans]
            finally:
                await engine.close()

        groups = [
            replace(g, trajectories=tuple(replace(t, score=Score(float(k))) for k, t in enumerate(g.trajectories)))
            for g in asyncio.run(sampled())
        ]
        return learner, groups[:2], [mark_offline(groups[2], "stored-0-0/")]

    return build


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.trainer.policy.model.named_parameters()}


def value(learner):
    return copy.deepcopy(learner.trainer.policy.critic.state_dict())


def equal_parameters(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_critic_only_groups_change_neither_the_policy_nor_its_metrics(parts):
    (alone, fresh, _), (both, _, stored) = parts(*CRITIC), parts(*CRITIC, STORED % 0.5)
    metrics = alone.update(UpdateBatch(tuple(fresh))).metrics
    told_of_both = both.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored))).metrics
    assert equal_parameters(weights(alone), weights(both))
    assert not equal_parameters(value(alone), value(both))
    for name in ("loss/policy", "policy/clip_fraction", "advantage/abs_mean"):
        assert told_of_both[name] == pytest.approx(metrics[name], abs=1e-6)


def test_critic_only_groups_of_weight_0_have_no_effect(parts):
    (alone, fresh, _), (both, _, stored) = parts(*CRITIC), parts(*CRITIC, STORED % 0.0)
    alone.update(UpdateBatch(tuple(fresh)))
    both.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    assert equal_parameters(weights(alone), weights(both))
    assert equal_parameters(value(alone), value(both))


def test_critics_regress_to_returns_on_fresh_and_to_one_step_targets_on_stored_turns(parts):
    learner, fresh, stored = parts(*CRITIC, STORED % 0.5)
    critic = learner.trainer.policy.critic
    with torch.no_grad():
        critic.value.bias.fill_(0.3)  # V = 0.3 everywhere
    loss = learner.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored))).metrics["loss/value"]

    def errors(groups, of):
        return [(0.3 - each) ** 2 for g in groups for t in g.trajectories for each in of(t)]

    def returns(t):
        n, cut = len(t.turns), t.ended.cut_short
        following, returns_of_turns = (0.3 if cut else 0.0), []
        for k in reversed(range(n)):
            following = (t.score.value if k == n - 1 else 0.0) + 0.9 * following
            returns_of_turns.append(following)
        return returns_of_turns

    def ahead(t):
        n, cut = len(t.turns), t.ended.cut_short
        return [0.9 * 0.3] * (n - 1) + [t.score.value + 0.9 * (0.3 if cut else 0.0)]

    on, off = errors(fresh, returns), errors(stored, ahead)
    assert loss == pytest.approx(0.5 * (sum(on) / len(on) + 0.5 * sum(off) / len(off)), rel=1e-5)


def test_weights_move_a_fraction_toward_the_inner_updates(parts):
    (complete, fresh, _), (part, _, _), (still, _, _) = parts(), parts(), parts()
    began = weights(still)
    complete.update(UpdateBatch(tuple(fresh), minibatches=2))
    part.update(UpdateBatch(tuple(fresh), minibatches=2, outer_rate=0.25))
    for name, parameter in weights(complete).items():
        assert torch.allclose(weights(part)[name], began[name] + 0.25 * (parameter - began[name]), atol=1e-7)
    assert not equal_parameters(began, weights(part))


def test_stored_copy_of_a_group_counts_equally(parts):
    learner, fresh, _ = parts("aggregation=sequence_sum")
    twice = UpdateBatch((fresh[0], mark_offline(fresh[0], "stored-0-0/")))
    once, _, _ = parts("aggregation=sequence_sum")
    metrics, told_once = learner.update(twice).metrics, once.update(UpdateBatch((fresh[0],))).metrics
    assert metrics["update/grad_norm"] == pytest.approx(told_once["update/grad_norm"], rel=1e-3)


def test_consistency_is_reported_and_weight_0_equals_the_plain_update(parts):
    smooth = "reinforcement.consistency_regularization={noise: 0.2, policy: %s, value: %s}"
    (plain, fresh, _), (regularized, _, _) = parts(*CRITIC), parts(*CRITIC, smooth % (0.5, 0.5))
    (none, _, _) = parts(*CRITIC, smooth % (0, 1e-30))
    plain.update(UpdateBatch(tuple(fresh)))
    metrics = regularized.update(UpdateBatch(tuple(fresh))).metrics
    none.update(UpdateBatch(tuple(fresh)))
    assert metrics["consistency/policy"] > 0
    assert metrics["consistency/value"] == 0  # the critic is initialized to 0
    assert equal_parameters(weights(plain), weights(none))
    assert not equal_parameters(weights(plain), weights(regularized))


def test_ensemble_is_trained_and_weights_imitation_by_its_confidence(parts):
    balanced = ["objective=policy_gradient", "advantage_transforms=[{name: famo2o, min_coef: 0.5, max_coef: 2}]"]
    learner, fresh, _ = parts("advantage=turn_gae", "critic={ensemble_size: 4, pessimism: deviation}", *balanced)
    metrics = learner.update(UpdateBatch(tuple(fresh))).metrics
    assert metrics["value/ensemble_std"] > 0
    assert metrics["advantage/abs_mean"] > 0
    assert metrics["advantage/zero_fraction"] == 0


def test_values_of_unrealistic_simulated_states_are_penalized(parts):
    more = "reinforcement.offline_mixture={data: x, mode: critic_only, critic_weight: 0, simulation_weight: %s}"
    (plain, fresh, stored), (regularized, _, _) = parts(*CRITIC, more % 0), parts(*CRITIC, more % 1000)
    plain.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    regularized.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    assert equal_parameters(weights(plain), weights(regularized))

    def value_distance(learner):
        segments = [[s for g in groups for t in g.trajectories for s in t.segments()] for groups in (fresh, stored)]
        simulated, real = (torch.cat(learner.trainer.values(each)).mean().item() for each in segments)
        return simulated - real

    assert value_distance(regularized) < value_distance(plain)
