"""Stored groups beside fresh ones, in the learner: critics alone, and weights that go part of the way."""

import asyncio
import copy
from dataclasses import replace

import pytest
import torch

from whetstone.assembly import assemble
from whetstone.data.stored_episodes import as_stored
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.rollout import Independent, Plan
from whetstone.trajectory import Score

pytestmark = pytest.mark.slow
CRITIC = ["advantage={name: turn_gae, discount: 0.9}", "critic={weight: 1.0}", "reinforcement.max_grad_norm=1000"]
STORED = "reinforcement.offline_mixture={data: x, mode: critic_only, critic_weight: %s, critic_discount: 0.9}"


@pytest.fixture
def parts(small_demo):
    """A learner of a recipe, and three groups it may learn from."""

    def made(*overrides):
        assembly = assemble(small_demo("rollout.group_size=3", "reinforcement.max_mismatch_kl=.inf", *overrides))
        settings = assembly.resolved.recipe.reinforcement
        learner = LocalLearner(ModelTrainer(assembly.policy, settings), assembly.learning_spec(settings))

        async def sampled():
            engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
            try:
                collector = assembly.collector(assembly.policy_actor(engine, temperature=1.0))
                plans = [Plan(assembly.source.task(k), seed=3, name=f"group-{k}/") for k in range(3)]
                return [await collector.group(plan, Independent(group_size=3)) for plan in plans]
            finally:
                await engine.close()

        groups = [
            replace(g, trajectories=tuple(replace(t, score=Score(float(k))) for k, t in enumerate(g.trajectories)))
            for g in asyncio.run(sampled())
        ]
        return learner, groups[:2], [as_stored(groups[2], "stored-0-0/")]

    return made


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.trainer.policy.model.named_parameters()}


def value(learner):
    return copy.deepcopy(learner.trainer.policy.critic.state_dict())


def alike(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_what_critics_alone_learn_from_moves_no_weight_of_the_policy_and_changes_no_report_of_it(parts):
    (alone, fresh, _), (both, _, stored) = parts(*CRITIC), parts(*CRITIC, STORED % 0.5)
    told = alone.update(UpdateBatch(tuple(fresh))).metrics
    told_of_both = both.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored))).metrics
    assert alike(weights(alone), weights(both))
    assert not alike(value(alone), value(both))
    for name in ("loss/policy", "policy/clip_fraction", "advantage/abs_mean"):
        assert told_of_both[name] == pytest.approx(told[name], abs=1e-6)


def test_without_weight_they_teach_critics_nothing_either(parts):
    (alone, fresh, _), (both, _, stored) = parts(*CRITIC), parts(*CRITIC, STORED % 0.0)
    alone.update(UpdateBatch(tuple(fresh)))
    both.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    assert alike(weights(alone), weights(both))
    assert alike(value(alone), value(both))


def test_critics_regress_to_returns_on_fresh_turns_and_one_step_ahead_on_stored_ones(parts):
    learner, fresh, stored = parts(*CRITIC, STORED % 0.5)
    critic = learner.trainer.policy.critic
    with torch.no_grad():
        critic.value.bias.fill_(0.3)  # V = 0.3 everywhere
    loss = learner.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored))).metrics["loss/value"]

    def errors(groups, of):
        return [(0.3 - each) ** 2 for g in groups for t in g.trajectories for each in of(t)]

    def returns(t):
        n, cut = len(t.turns), t.ended.cut_short
        behind, found = (0.3 if cut else 0.0), []
        for k in reversed(range(n)):
            behind = (t.score.value if k == n - 1 else 0.0) + 0.9 * behind
            found.append(behind)
        return found

    def ahead(t):
        n, cut = len(t.turns), t.ended.cut_short
        return [0.9 * 0.3] * (n - 1) + [t.score.value + 0.9 * (0.3 if cut else 0.0)]

    on, off = errors(fresh, returns), errors(stored, ahead)
    assert loss == pytest.approx(0.5 * (sum(on) / len(on) + 0.5 * sum(off) / len(off)), rel=1e-5)


def test_weights_go_a_step_toward_where_the_inner_updates_led(parts):
    (whole, fresh, _), (part, _, _), (still, _, _) = parts(), parts(), parts()
    began = weights(still)
    whole.update(UpdateBatch(tuple(fresh), minibatches=2))
    part.update(UpdateBatch(tuple(fresh), minibatches=2, outer_rate=0.25))
    for name, there in weights(whole).items():
        assert torch.allclose(weights(part)[name], began[name] + 0.25 * (there - began[name]), atol=1e-7)
    assert not alike(began, weights(part))


def test_a_group_stored_beside_its_fresh_twin_counts_as_much(parts):
    learner, fresh, _ = parts("aggregation=sequence_sum")
    twice = UpdateBatch((fresh[0], as_stored(fresh[0], "stored-0-0/")))
    once, _, _ = parts("aggregation=sequence_sum")
    told, told_once = learner.update(twice).metrics, once.update(UpdateBatch((fresh[0],))).metrics
    assert told["update/grad_norm"] == pytest.approx(told_once["update/grad_norm"], rel=1e-3)


def test_held_smooth_an_update_says_how_far_it_is_apart_and_at_weight_nothing_it_is_the_plain_one(parts):
    smooth = "reinforcement.consistency_regularization={noise: 0.2, policy: %s, value: %s}"
    (plain, fresh, _), (held, _, _) = parts(*CRITIC), parts(*CRITIC, smooth % (0.5, 0.5))
    (none, _, _) = parts(*CRITIC, smooth % (0, 1e-30))
    plain.update(UpdateBatch(tuple(fresh)))
    told = held.update(UpdateBatch(tuple(fresh))).metrics
    none.update(UpdateBatch(tuple(fresh)))
    assert told["consistency/policy"] > 0
    assert told["consistency/value"] == 0  # the critic is initialized to 0
    assert alike(weights(plain), weights(none))
    assert not alike(weights(plain), weights(held))


def test_an_ensemble_learns_and_weighs_what_is_imitated_by_how_sure_it_is(parts):
    balanced = ["objective=policy_gradient", "advantage_transforms=[{name: famo2o, min_coef: 0.5, max_coef: 2}]"]
    learner, fresh, _ = parts("advantage=turn_gae", "critic={ensemble_size: 4, pessimism: deviation}", *balanced)
    told = learner.update(UpdateBatch(tuple(fresh))).metrics
    assert told["value/ensemble_std"] > 0
    assert told["advantage/abs_mean"] > 0
    assert told["advantage/zero_fraction"] == 0


def test_simulated_values_are_held_down_where_they_part_from_real_ones(parts):
    more = "reinforcement.offline_mixture={data: x, mode: critic_only, critic_weight: 0, simulation_weight: %s}"
    (plain, fresh, stored), (held, _, _) = parts(*CRITIC, more % 0), parts(*CRITIC, more % 1000)
    plain.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    held.update(UpdateBatch(tuple(fresh), for_critic=tuple(stored)))
    assert alike(weights(plain), weights(held))

    def apart(learner):
        segments = [[s for g in groups for t in g.trajectories for s in t.segments()] for groups in (fresh, stored)]
        simulated, real = (torch.cat(learner.trainer.values(each)).mean().item() for each in segments)
        return simulated - real

    assert apart(held) < apart(plain)
