"""Old log-probs of tokens that were not sampled in the trained context by the current policy."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

from support import small
from whetstone.assembly import assemble
from whetstone.errors import CreditError
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.rollout import GroupPlan, Independent
from whetstone.trajectory import Author, OffPolicy, Score

SPY = "objective=support.small:spied"


@pytest.fixture
def sampled(small_demo):
    """Return a function that builds an assembly, its learner, and a group."""

    def build(*overrides):
        assembly = assemble(small_demo("rollout.group_size=3", "reinforcement.max_mismatch_kl=.inf", SPY, *overrides))
        settings = assembly.resolved.recipe.reinforcement
        learner = LocalLearner(ModelTrainer(assembly.policy, settings), assembly.learning_spec(settings))

        async def group():
            engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
            try:
                collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
                plan = GroupPlan(assembly.source.task(0), seed=3, name="x/")
                return await collector.group(plan, Independent(group_size=3))
            finally:
                await engine.close()

        sampled_group = asyncio.run(group())
        scored = (replace(t, score=Score(float(k), success=k > 0)) for k, t in enumerate(sampled_group.trajectories))
        return assembly, learner, replace(sampled_group, trajectories=tuple(scored))

    return build


def spied(assembly, learner, group, first):
    """Return (old, sampler, learner log-probs) per trajectory after replacing the first of the group."""
    small.SEEN.clear()
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    learner.update(UpdateBatch((changed,)))
    return {name: torch.cat([seen[name] for seen in small.SEEN]) for name in small.SEEN[0]}


def with_logprobs(trajectory, value, author=Author.POLICY):
    turns = []
    for turn in trajectory.turns:
        n = len(turn.action)
        action = replace(turn.action, logprobs=(value,) * n, authors=(author,) * n)
        turns.append(replace(turn, action=action))
    return replace(trajectory, turns=tuple(turns))


@pytest.mark.parametrize("mode", OffPolicy)
@pytest.mark.parametrize(
    "more", [[], ["reinforcement.minibatches=1", "reinforcement.epochs=2"]], ids=["first", "epochs"]
)
def test_stored_log_probs_are_the_old_ones_by_the_mode(sampled, mode, more):
    assembly, learner, group = sampled(*more)
    first = replace(with_logprobs(group.trajectories[0], -7.0), off_policy=mode)
    columns = spied(assembly, learner, group, first)
    stored = columns["sampler_logprobs"] == -7.0
    assert stored.any()
    assert not stored.all()
    if mode in (OffPolicy.STORED, OffPolicy.CROSS_VIEW):
        assert (columns["old_logprobs"][stored] == -7.0).all()
    else:
        assert not (columns["old_logprobs"][stored] == -7.0).any()
    if not more:  # the ratio of the others starts at 1
        assert torch.equal(columns["old_logprobs"][~stored], columns["learner_logprobs"][~stored])


def test_worked_numbers_of_guided_tokens():
    plain, hinted = torch.tensor([-2.0, -1.0]), torch.tensor([-0.5, -0.8])
    assert (plain - hinted).exp().tolist() == pytest.approx([0.2231, 0.8187], abs=1e-4)
    rewards = torch.tensor([0.0, 0, 0, 0, 1, 0])
    advantages = (rewards - rewards.mean()) / rewards.std(correction=0)
    assert advantages[4].item() == pytest.approx(2.2361, abs=1e-4)
    assert advantages[0].item() == pytest.approx(-0.4472, abs=1e-4)


@pytest.mark.parametrize("mode", OffPolicy)
def test_mismatch_covers_only_tokens_sampled_in_the_trained_context(sampled, mode):
    _assembly, learner, group = sampled()
    first = replace(with_logprobs(group.trajectories[0], -7.0), off_policy=mode)
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    metrics = learner.update(UpdateBatch((changed,))).metrics
    assert (metrics["sampler/mismatch_kl"] > 0.1) == (mode is OffPolicy.RECOMPUTE)
    assert ("policy/staleness_kl" in metrics) == (mode is not OffPolicy.RECOMPUTE)


def test_tokens_of_another_training_context_are_excluded_from_mismatch_and_staleness(sampled):
    _assembly, learner, group = sampled()
    drawn = with_logprobs(group.trajectories[0], -7.0)
    turn = replace(drawn.turns[0], training_context=drawn.turns[0].context)
    changed = replace(group, trajectories=(replace(drawn, turns=(turn, *drawn.turns[1:])), *group.trajectories[1:]))
    metrics = learner.update(UpdateBatch((changed,))).metrics
    assert metrics["sampler/mismatch_kl"] < 1e-4
    assert metrics["policy/staleness_kl"] > 0.1


def test_spliced_tokens_have_their_stored_probability(sampled):
    assembly, learner, group = sampled()
    turn = group.trajectories[0].turns[0]
    n = len(turn.action)
    authors = (Author.INSERTED, *(Author.POLICY,) * (n - 1))
    action = replace(turn.action, authors=authors, logprobs=(math.log(0.5), *turn.action.logprobs[1:]))
    first = replace(group.trajectories[0], turns=(replace(turn, action=action), *group.trajectories[0].turns[1:]))
    columns = spied(assembly, learner, group, first)
    spliced = (columns["sampler_logprobs"] - math.log(0.5)).abs() < 1e-6
    assert spliced.sum() == 1
    assert columns["old_logprobs"][spliced].item() == pytest.approx(math.log(0.5))
    assert torch.equal(columns["old_logprobs"][~spliced], columns["learner_logprobs"][~spliced])
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    metrics = learner.update(UpdateBatch((changed,))).metrics
    assert metrics["sampler/mismatch_kl"] < 1e-4  # `spied` trained on the first


def test_corrected_tokens_are_trained_with_a_ratio_of_one(sampled):
    assembly, learner, group = sampled()
    first = with_logprobs(group.trajectories[0], math.nan, Author.CORRECTED)
    columns = spied(assembly, learner, group, first)
    total = sum(t.action_tokens for t in group.trajectories)
    assert len(columns["old_logprobs"]) == total
    assert not columns["sampler_logprobs"].isnan().any()  # it was not sampled, so it has no ratio to a sampling policy
    assert torch.equal(columns["old_logprobs"], columns["learner_logprobs"])


def test_stored_mode_requires_log_probs(sampled):
    assembly, learner, group = sampled()
    first = replace(with_logprobs(group.trajectories[0], math.nan), off_policy=OffPolicy.STORED)
    with pytest.raises(CreditError, match=r"x/.*#0: off_policy stored uses log-probs .* it has none"):
        spied(assembly, learner, group, first)


def test_corrections_are_finite_for_unsampled_tokens(sampled):
    _assembly, learner, group = sampled("importance_correction=truncated")
    first = with_logprobs(group.trajectories[0], math.nan, Author.CORRECTED)
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    learned = learner.update(UpdateBatch((changed,)))
    assert math.isfinite(learned.metrics["loss/total"])
    assert math.isfinite(learned.metrics["importance/weight_mean"])
    assert math.isfinite(learned.metrics["update/grad_norm"])
