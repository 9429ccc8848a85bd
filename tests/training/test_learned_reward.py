"""A learned reward is a member: trained in the run of the policy, with its own optimizer, through kills and resumes."""

import asyncio
import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from support.learners import Noting, assembled, groups
from support.small import SMALL, StopAfter, Stopped
from whetstone.algorithms.objectives.reward_model_loss import bradley_terry
from whetstone.analysis import RunReplay
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.learning.reward_learner import RewardLearner
from whetstone.policies import build_critic
from whetstone.recipe import OptimizerSettings, load_recipe
from whetstone.record import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import final_agent, train

SHORT = [*SMALL, "rollout.group_size=4", "supervised=null", "ablations=null", "reinforcement.steps=5"]
SHORT = [change for change in SHORT if not change.startswith("supervised.")]
SHORT += ["reinforcement.checkpoint_interval_steps=1"]
AHEAD = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"]
TWO = "policies={solver: {}, scorer: {like: solver, reinforcement: {learning_rate: 2.0e-3}}}"
LEARNED = "reward={name: reward_model, member: scorer, outcome: 'support.small:solve_every_second'}"


def recipe(*changes):
    return load_recipe("demo", [*SHORT, TWO, LEARNED, *changes])


def weights(run, member=""):
    folder = latest_checkpoint(run) / member
    saved = {"head": torch.load(folder / "trainer/critic.pt")["state"]["value.weight"]} if member else {}
    return load_file(folder / "model.safetensors") | saved


def replay_everything(run):
    async def collect():
        return [check async for check in RunReplay(run).recompute_all(updates=True)]

    return asyncio.run(collect())


def assert_same(one, other):
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def scorer(rate=1e-3):
    policy = assembled().policy
    critic = build_critic(policy.model, ("reward",), detached=False)
    torch.nn.init.normal_(critic.value.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    object.__setattr__(policy, "critic", critic)
    return RewardLearner(policy, OptimizerSettings(steps=5, learning_rate=rate, max_grad_norm=1e9))


def naive_score(policy, trajectory):
    """Run a forward pass over the last segment only: the head on the state that predicts the last action token."""
    tokens, mask = trajectory.segments()[-1].tokens.ids, trajectory.segments()[-1].action_mask
    last = max(place for place, trained in enumerate(mask) if trained)
    states = policy.model(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states[-1]
    return policy.critic.value(states[0, last - 1])[0]


def test_score_and_gradient_are_those_of_the_pairs_one_by_one():
    learner = scorer()
    policy, sampled = learner.trainer.policy, groups()
    learner.trainer.passes = Noting(policy, learner.trainer.settings)
    for group in sampled:
        for each in group.counted:
            assert learner.score(each) == pytest.approx(naive_score(policy, each).item(), abs=1e-5)
    losses = [
        bradley_terry(naive_score(policy, a), naive_score(policy, b))
        for group in sampled
        for a in group.counted
        for b in group.counted
        if a.solved and not b.solved
    ]
    expected = torch.stack(losses).mean()
    gradients = torch.autograd.grad(expected, policy.trainable_parameters())
    metrics = learner.fit(sampled)
    assert metrics["pairs"] == len(losses) == 4
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    (noted,) = learner.trainer.passes.noted
    for one, other in zip(noted, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_pairs_become_ordered_and_a_step_without_pairs_changes_nothing():
    learner, sampled = scorer(), groups()
    first = learner.fit(sampled)["loss"]
    for _ in range(4):
        metrics = learner.fit(sampled)
    assert metrics["loss"] < first
    before = [each.clone() for each in learner.trainer.policy.trainable_parameters()]
    only_solved = [replace(group, trajectories=group.trajectories[:1]) for group in sampled]
    assert learner.fit(only_solved) == {"pairs": 0.0}
    assert all(map(torch.equal, before, learner.trainer.policy.trainable_parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [[], AHEAD])
def test_a_killed_run_has_the_same_policy_and_the_same_learned_reward(tmp_path, ahead):
    resolved, numbers = recipe(*ahead), random.Random(3)
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    for steps in numbers.sample(range(1, 4), 2):
        with pytest.raises(Stopped):
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps, of="reinforcement"))
    train(resolved, tmp_path / "killed", resume=True, progress=Progress(quiet=True))
    for member in ("", "members/scorer"):
        assert_same(weights(tmp_path / "whole", member), weights(tmp_path / "killed", member))
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").open()]
    assert rows[0]["reward/learned"] == 0.5 != rows[-1]["reward/learned"]
    assert all(row["reward/pairs"] >= 4 for row in rows[1:])
    replayed = replay_everything(tmp_path / "whole")
    assert {check.what: check.examples for check in replayed if check.changed} == {}
    assert "updates 1 to 5" in {check.what for check in replayed}
    # another command scores with the trained model
    policy, state = final_agent(tmp_path / "whole")
    trained = assemble(resolved, policy, state).check().members["scorer"].policy
    assert_same(weights(tmp_path / "whole", "members/scorer"), {
        **trained.model.state_dict(), "head": trained.critic.value.weight.detach()
    })  # fmt: skip
    assert torch.any(trained.critic.value.weight != 0)


@pytest.mark.slow
def test_a_frozen_scorer_of_an_earlier_run_has_its_head_and_is_not_trained(tmp_path):
    train(recipe("reinforcement.steps=2"), tmp_path / "first", progress=Progress(quiet=True))
    folder = latest_checkpoint(tmp_path / "first")
    solver, member = folder.resolve(), folder.resolve() / "members" / "scorer"
    own = ["policy.tiny=null", f"policy.path={solver}"]
    own += [f"policies={{solver: {{}}, scorer: {{path: {member}, trained: false}}}}"]
    train(recipe(*own, "reinforcement.steps=2"), tmp_path / "second", progress=Progress(quiet=True))
    assert_same(weights(tmp_path / "first", "members/scorer"), weights(tmp_path / "second", "members/scorer"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["reward.member=judge"], "reward.member: no member of policies after the first is named .judge.; .*scorer"),
        (["reward.member=solver"], "reward.member: no member of policies after the first"),
        (["reward.path=here"], "reward.path: set either path, a model folder, or member"),
        (["reward.refresh=true"], "reward.refresh: has no effect with member"),
        (["reward=exact_number"], "policies.scorer: has no effect: .* no reward names it"),
        (["policies.scorer.freeze=[nothing]"], 'policies.scorer.freeze: no parameter is named "nothing"'),
        (["scale=local-ray"], "scale.backend: the workers that compute rewards do not have scorer of policies"),
        (["scale.learner_processes=2"], "learner_processes: solver and scorer are trained, each by one process"),
        (
            ["policies.scorer={like: solver, tiny: {context_length: 64}}"],
            "policies.scorer: reads 64 tokens, the first member",
        ),
    ],
)
def test_learned_rewards_that_cannot_work_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        assemble(recipe(*changes)).check()
