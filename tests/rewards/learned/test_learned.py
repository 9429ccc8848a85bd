"""A reward model learns preferences from pairs, and continues to learn during a run."""

import asyncio
import json
import math
import threading
from dataclasses import replace

import pytest
import torch

from support.cli import whetstone
from support.rewards import episode, score, task, turn
from support.small import SMALL, StopAfter, Stopped
from whetstone.errors import PolicyError, RecipeError
from whetstone.policies import build_tiny, save_policy
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.learned.learned_reward import LearnedReward
from whetstone.rewards.learned.model import HEAD, EpisodePair, RewardModel
from whetstone.rollout import StepOutcome
from whetstone.rollout.method import MethodComponents
from whetstone.seeding import derive_random
from whetstone.training import final_policy, train
from whetstone.trajectory import Group, Score


@pytest.fixture
def folder(tmp_path):
    texts = ["user: Compute 12*34\nassistant: 408", "assistant: I do not know", "calls pocket_calculator"] * 4
    policy = build_tiny(texts, markers=(), hidden=32, heads=2, layers=1, context_length=128)
    save_policy(policy, tmp_path / "model")
    return tmp_path / "model"


def pairs(start, count):
    return [
        EpisodePair(f"assistant: the answer is {k}", f"assistant: sorry, no idea {k}")
        for k in range(start, start + count)
    ]


def test_it_generalizes_from_pairs(folder):
    model = RewardModel(folder)
    assert model.pair_accuracy(pairs(0, 4)) == 0.5  # untrained
    loss = model.fit(pairs(0, 20))
    assert loss < math.log(2) / 2
    assert model.pair_accuracy(pairs(100, 20)) > 0.9


def test_it_learns_from_single_labels(folder):
    model = RewardModel(folder)
    model.fit(singles=[(text, yes) for p in pairs(0, 20) for text, yes in ((p.better, True), (p.worse, False))])
    assert (
        asyncio.run(model.score("assistant: the answer is 77"))
        > 0
        > asyncio.run(model.score("assistant: sorry, no idea 77"))
    )
    with pytest.raises(ValueError, match="no examples to train on"):
        model.fit()


def test_head_is_stored_next_to_the_model(folder, tmp_path):
    model = RewardModel(folder)
    model.fit(pairs(0, 8))
    model.save()
    assert RewardModel(folder).score_state(torch.ones(32)) == pytest.approx(model.score_state(torch.ones(32)), rel=1e-5)
    other = build_tiny(["x y z"] * 4, markers=(), hidden=16, heads=2, layers=1)
    save_policy(other, tmp_path / "other")
    (tmp_path / "other" / HEAD).write_text((folder / HEAD).read_text())
    with pytest.raises(PolicyError, match="belongs to another model"):
        RewardModel(tmp_path / "other")


def test_reward_is_the_preference_and_success_that_of_the_rule(folder):
    model = RewardModel(folder)
    examples = [(format_episode(episode(p.better[11:])), format_episode(episode(p.worse[11:]))) for p in pairs(0, 20)]
    model.fit([EpisodePair(*both) for both in examples])
    model.save()
    problem = task("?", answer="7")
    liked, disliked = (
        score("reward_model", episode(say), problem, path=str(folder), outcome="exact_number")
        for say in ("the answer is 7", "sorry, no idea 8")
    )
    assert (liked.success, disliked.success) == (True, False)
    assert 0 < disliked.value < liked.value < 1
    both = score(
        "reward_model",
        episode("the answer is 7"),
        problem,
        path=str(folder),
        outcome="exact_number",
        outcome_weight=1.0,
        weight=0.5,
    )
    assert both.value == pytest.approx(1 + 0.5 * liked.value, rel=1e-5)


def test_it_is_updated_with_successes_of_the_rule(folder):
    reward = LearnedReward(path=str(folder), refresh=True)
    solved = [Group(task("?"), (scored("the answer is 1", True), scored("sorry, no idea 1", False)))]
    before = reward.model.weight.clone()
    for _ in range(4):
        reward.observe(StepOutcome(1, tuple(solved), {}, derive_random(1)))
    assert not torch.equal(before, reward.model.weight)
    assert reward.metrics()["pairs"] == 1
    restored = LearnedReward(path=str(folder), refresh=True)
    restored.load_state(json.loads(json.dumps(reward.state())))
    assert torch.allclose(restored.model.weight, reward.model.weight)
    reward.observe(StepOutcome(1, (Group(task("?"), (scored("x", True),)),), {}, derive_random(1)))
    with pytest.raises(RecipeError, match=f"has no {HEAD}; create it with `whetstone rewards train-model RECIPE"):
        LearnedReward(path=str(folder))
    restored.model.save()
    assert not hasattr(LearnedReward(path=str(folder)), "observe")


def test_event_loop_is_not_blocked_by_the_update(folder, monkeypatch):
    reward, reached = LearnedReward(path=str(folder), refresh=True), threading.Event()
    fit = reward.model.fit

    def fit_once_the_loop_went_on(*pairs, **options):
        assert reached.wait(60)  # set by the loop, so not reached if the loop is what trains
        return fit(*pairs, **options)

    monkeypatch.setattr(reward.model, "fit", fit_once_the_loop_went_on)
    solved = Group(task("?"), (scored("the answer is 1", True), scored("sorry, no idea 1", False)))
    before = reward.model.weight.clone()

    async def run():
        learning = asyncio.create_task(
            MethodComponents(reward=reward).observe_step(StepOutcome(1, (solved,), {}, derive_random(1)))
        )
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(reached.set)
        await learning

    asyncio.run(run())
    assert not torch.equal(before, reward.model.weight)


def scored(text, right):
    return replace(episode(turn(text)), score=Score(float(right), success=right))


@pytest.mark.slow
def test_run_with_an_updated_reward_model_resumes_exactly(folder, tmp_path, monkeypatch):
    reward = f"reward={{name: reward_model, path: {folder}, refresh: true, outcome: 'support.small:odd'}}"
    recipe = load_recipe(
        "demo", [*SMALL, reward, "reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=1", "ablations=null"]
    )
    threads = set()
    fit = RewardModel.fit
    monkeypatch.setattr(
        RewardModel, "fit", lambda *a, **k: threads.add(threading.current_thread().name) or fit(*a, **k)
    )
    train(recipe, tmp_path / "whole", progress=Progress(quiet=True))
    assert threads == {"arithmetic_0"}  # the compute thread, whatever the recipe
    with pytest.raises(Stopped):
        train(recipe, tmp_path / "cut", progress=StopAfter(2, of="reinforcement"))
    train(recipe, tmp_path / "cut", resume=True, progress=Progress(quiet=True))
    undisturbed, cut = (
        torch.cat([p.flatten() for p in final_policy(tmp_path / name).model.parameters()]) for name in ("whole", "cut")
    )
    assert torch.equal(undisturbed, cut)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").open()]
    assert any("reward/pairs" in row for row in rows)


@pytest.mark.slow
def test_command_trains_a_reward_model(folder):
    done = whetstone("rewards", "train-model", "demo", "--model", folder, "--tasks", "25", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["tasks"], report["tried_on"]) == (20, 5)
    assert report["accuracy"] > 0.7
    assert (folder / HEAD).is_file()
