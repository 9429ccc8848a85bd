"""A reward model learns which of two is better, and goes on learning in a run."""

import asyncio
import json
import math
import threading
from dataclasses import replace

import pytest
import torch

from tests_cli import whetstone
from tests_rewards import episode, score, task, turn
from tests_small import SMALL, StopAfter, Stopped
from whetstone.errors import PolicyError, RecipeError
from whetstone.policies import build_tiny, save_policy
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.learned.model import HEAD, Pair, RewardModel
from whetstone.rewards.learned.reward import Learned
from whetstone.rollout import StepOutcome
from whetstone.rollout.method import Method
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
        Pair(f"assistant: the answer is {k}", f"assistant: sorry, no idea {k}") for k in range(start, start + count)
    ]


def test_it_learns_from_pairs_what_it_has_not_seen(folder):
    model = RewardModel(folder)
    assert model.accuracy(pairs(0, 4)) == 0.5  # it knows nothing
    loss = model.fit(pairs(0, 20))
    assert loss < math.log(2) / 2
    assert model.accuracy(pairs(100, 20)) > 0.9


def test_it_learns_from_single_ones(folder):
    model = RewardModel(folder)
    model.fit(singles=[(text, yes) for p in pairs(0, 20) for text, yes in ((p.better, True), (p.worse, False))])
    assert (
        asyncio.run(model.score("assistant: the answer is 77"))
        > 0
        > asyncio.run(model.score("assistant: sorry, no idea 77"))
    )
    with pytest.raises(ValueError, match="nothing to learn from"):
        model.fit()


def test_the_line_is_kept_beside_the_model(folder, tmp_path):
    model = RewardModel(folder)
    model.fit(pairs(0, 8))
    model.save()
    assert RewardModel(folder).value(torch.ones(32)) == pytest.approx(model.value(torch.ones(32)), rel=1e-5)
    other = build_tiny(["x y z"] * 4, markers=(), hidden=16, heads=2, layers=1)
    save_policy(other, tmp_path / "other")
    (tmp_path / "other" / HEAD).write_text((folder / HEAD).read_text())
    with pytest.raises(PolicyError, match="made for another model"):
        RewardModel(tmp_path / "other")


def test_a_reward_says_how_it_is_liked_and_the_rule_what_is_right(folder):
    model = RewardModel(folder)
    shown = [(transcript(episode(p.better[11:])), transcript(episode(p.worse[11:]))) for p in pairs(0, 20)]
    model.fit([Pair(*both) for both in shown])
    model.save()
    given = task("?", answer="7")
    liked, disliked = (
        score("reward_model", episode(say), given, path=str(folder), outcome="exact_number")
        for say in ("the answer is 7", "sorry, no idea 8")
    )
    assert (liked.success, disliked.success) == (True, False)
    assert 0 < disliked.value < liked.value < 1
    both = score(
        "reward_model",
        episode("the answer is 7"),
        given,
        path=str(folder),
        outcome="exact_number",
        outcome_weight=1.0,
        weight=0.5,
    )
    assert both.value == pytest.approx(1 + 0.5 * liked.value, rel=1e-5)


def test_it_learns_on_from_what_the_rule_accepts(folder):
    reward = Learned(path=str(folder), refresh=True)
    solved = [Group(task("?"), (scored("the answer is 1", True), scored("sorry, no idea 1", False)))]
    before = reward.model.weight.clone()
    for _ in range(4):
        reward.observe(StepOutcome(1, tuple(solved), {}, derive_random(1)))
    assert not torch.equal(before, reward.model.weight)
    assert reward.metrics()["pairs"] == 1
    again = Learned(path=str(folder), refresh=True)
    again.load_state(json.loads(json.dumps(reward.state())))
    assert torch.allclose(again.model.weight, reward.model.weight)
    reward.observe(StepOutcome(1, (Group(task("?"), (scored("x", True),)),), {}, derive_random(1)))
    with pytest.raises(RecipeError, match=f"has no {HEAD}: `whetstone rewards train-model RECIPE"):
        Learned(path=str(folder))
    again.model.save()
    assert not hasattr(Learned(path=str(folder)), "observe")


def test_the_event_loop_is_free_while_it_learns_on(folder, monkeypatch):
    reward, reached = Learned(path=str(folder), refresh=True), threading.Event()
    fit = reward.model.fit

    def fit_once_the_loop_went_on(*pairs, **options):
        assert reached.wait(60)  # set by the loop, so not reached if the loop is what trains
        return fit(*pairs, **options)

    monkeypatch.setattr(reward.model, "fit", fit_once_the_loop_went_on)
    solved = Group(task("?"), (scored("the answer is 1", True), scored("sorry, no idea 1", False)))
    before = reward.model.weight.clone()

    async def run():
        learning = asyncio.create_task(
            Method(reward=reward).observe_step(StepOutcome(1, (solved,), {}, derive_random(1)))
        )
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(reached.set)
        await learning

    asyncio.run(run())
    assert not torch.equal(before, reward.model.weight)


def scored(said, right):
    return replace(episode(turn(said)), score=Score(float(right), success=right))


@pytest.mark.slow
def test_a_run_in_which_it_learns_on_goes_on_as_it_was(folder, tmp_path, monkeypatch):
    reward = f"reward={{name: reward_model, path: {folder}, refresh: true, outcome: 'tests_small:odd'}}"
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
    whole, cut = (
        torch.cat([p.flatten() for p in final_policy(tmp_path / name).model.parameters()]) for name in ("whole", "cut")
    )
    assert torch.equal(whole, cut)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").open()]
    assert any("reward/pairs" in row for row in rows)


@pytest.mark.slow
def test_the_command_fits_one(folder):
    found = whetstone("rewards", "train-model", "demo", "--model", folder, "--tasks", "25", "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert (told["tasks"], told["tried_on"]) == (20, 5)
    assert told["accuracy"] > 0.7
    assert (folder / HEAD).is_file()
