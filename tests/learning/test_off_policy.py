"""What ratios compare with, for tokens that were not drawn just now behind what is trained."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

import tests_small
from whetstone.assembly import assemble
from whetstone.errors import CreditError
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.rollout import Independent, Plan
from whetstone.trajectory import Author, OffPolicy, Score

SPY = "objective=tests_small:spied"


@pytest.fixture
def sampled(small_demo):
    """An assembly, its learner, and a group whose first trajectory may be changed."""

    def made(*overrides):
        assembly = assemble(small_demo("rollout.group_size=3", "reinforcement.max_mismatch_kl=.inf", SPY, *overrides))
        settings = assembly.resolved.recipe.reinforcement
        learner = LocalLearner(ModelTrainer(assembly.policy, settings), assembly.learning_spec(settings))

        async def group():
            engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
            try:
                collector = assembly.collector(assembly.policy_actor(engine, temperature=1.0))
                plan = Plan(assembly.source.task(0), seed=3, name="x/")
                return await collector.group(plan, Independent(group_size=3))
            finally:
                await engine.close()

        found = asyncio.run(group())
        scored = (replace(t, score=Score(float(k), success=k > 0)) for k, t in enumerate(found.trajectories))
        return assembly, learner, replace(found, trajectories=tuple(scored))

    return made


def spied(assembly, learner, group, first):
    """(old, sampler, learner log-probs) of each trajectory, the first of the group being replaced."""
    tests_small.SEEN.clear()
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    learner.update(UpdateBatch((changed,)))
    return {name: torch.cat([seen[name] for seen in tests_small.SEEN]) for name in tests_small.SEEN[0]}


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
def test_kept_log_probs_take_the_old_ones_place_where_the_mode_says(sampled, mode, more):
    assembly, learner, group = sampled(*more)
    first = replace(with_logprobs(group.trajectories[0], -7.0), off_policy=mode)
    columns = spied(assembly, learner, group, first)
    mine = columns["sampler_logprobs"] == -7.0
    assert mine.any()
    assert not mine.all()
    if mode in (OffPolicy.STORED, OffPolicy.CROSS_VIEW):
        assert (columns["old_logprobs"][mine] == -7.0).all()
    else:
        assert not (columns["old_logprobs"][mine] == -7.0).any()
    if not more:  # the others' ratio begins at 1
        assert torch.equal(columns["old_logprobs"][~mine], columns["learner_logprobs"][~mine])


def test_guide_worked_numbers():
    plain, hinted = torch.tensor([-2.0, -1.0]), torch.tensor([-0.5, -0.8])
    assert (plain - hinted).exp().tolist() == pytest.approx([0.2231, 0.8187], abs=1e-4)
    rewards = torch.tensor([0.0, 0, 0, 0, 1, 0])
    advantages = (rewards - rewards.mean()) / rewards.std(correction=0)
    assert advantages[4].item() == pytest.approx(2.2361, abs=1e-4)
    assert advantages[0].item() == pytest.approx(-0.4472, abs=1e-4)


@pytest.mark.parametrize("mode", OffPolicy)
def test_only_what_was_drawn_behind_what_is_trained_says_whether_sampler_and_learner_agree(sampled, mode):
    _assembly, learner, group = sampled()
    first = replace(with_logprobs(group.trajectories[0], -7.0), off_policy=mode)
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    told = learner.update(UpdateBatch((changed,))).metrics
    assert (told["sampler/mismatch_kl"] > 0.1) == (mode is OffPolicy.RECOMPUTE)
    assert ("policy/staleness_kl" in told) == (mode is not OffPolicy.RECOMPUTE)


def test_tokens_trained_behind_another_context_than_they_were_drawn_behind_are_asked_of_neither(sampled):
    _assembly, learner, group = sampled()
    drawn = with_logprobs(group.trajectories[0], -7.0)
    turn = replace(drawn.turns[0], training_context=drawn.turns[0].context)
    changed = replace(group, trajectories=(replace(drawn, turns=(turn, *drawn.turns[1:])), *group.trajectories[1:]))
    told = learner.update(UpdateBatch((changed,))).metrics
    assert told["sampler/mismatch_kl"] < 1e-4
    assert told["policy/staleness_kl"] > 0.1


def test_spliced_tokens_have_the_probability_they_were_spliced_with(sampled):
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
    told = learner.update(UpdateBatch((changed,))).metrics
    assert told["sampler/mismatch_kl"] < 1e-4  # the first was trained on by `spied`


def test_what_was_mended_is_trained_from_a_ratio_of_one(sampled):
    assembly, learner, group = sampled()
    first = with_logprobs(group.trajectories[0], math.nan, Author.CORRECTED)
    columns = spied(assembly, learner, group, first)
    total = sum(t.action_tokens for t in group.trajectories)
    assert len(columns["old_logprobs"]) == total
    assert not columns["sampler_logprobs"].isnan().any()  # nobody drew it, so it has no ratio to whoever did
    assert torch.equal(columns["old_logprobs"], columns["learner_logprobs"])


def test_a_mode_that_needs_log_probs_refuses_what_has_none(sampled):
    assembly, learner, group = sampled()
    first = replace(with_logprobs(group.trajectories[0], math.nan), off_policy=OffPolicy.STORED)
    with pytest.raises(CreditError, match=r"x/.*#0: off_policy stored compares with log-probs .* it has none"):
        spied(assembly, learner, group, first)


def test_corrections_are_finite_where_nobody_drew(sampled):
    _assembly, learner, group = sampled("importance_correction=truncated")
    first = with_logprobs(group.trajectories[0], math.nan, Author.CORRECTED)
    changed = replace(group, trajectories=(first, *group.trajectories[1:]))
    learned = learner.update(UpdateBatch((changed,)))
    assert math.isfinite(learned.metrics["loss/total"])
    assert math.isfinite(learned.metrics["importance/weight_mean"])
    assert math.isfinite(learned.metrics["update/grad_norm"])
