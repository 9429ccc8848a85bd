"""A stage that trains a reward model: evaluated on held-out tasks, and used by the following stage."""

import itertools
import json

import pytest
import torch

from support.conversations import pairs, written
from support.episodes import path, turn
from support.small import StopAfter, Stopped
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.recipe import list_stages, load_recipe
from whetstone.reporting import Progress
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.learned.model import RewardModel
from whetstone.training import final_policy, train
from whetstone.training.reward_model import pairs_in

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=2",
         "rollout.group_size=2", "rollout.max_new_tokens=6", "reward=support.small:odd"]  # fmt: skip
LEARNED = {"name": "reward_model", "stage": "previous", "outcome": "exact_number"}
USED = {"reinforcement": {"steps": 2, "tasks_per_step": 2}, "reward": LEARNED}


def recipe(*stages):
    return load_recipe("demo", PLAIN, stages=list(stages))


def episode_with(text, reward):
    return path(text, reward, [turn(text)])


def test_each_better_episode_is_paired_with_each_worse_one():
    good, middling, bad = episode_with("good", 1.0), episode_with("middling", 0.5), episode_with("bad", 0.0)
    found_pairs = {(pair.better, pair.worse) for pair in pairs_in([bad, good, middling])}
    ranked = [(good, middling), (good, bad), (middling, bad)]
    assert found_pairs == {(format_episode(a), format_episode(b)) for a, b in ranked}
    assert pairs_in([good, episode_with("good", 0.0)]) == []  # they are equal
    assert pairs_in([good, path("unscored", None)]) == []


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"reward_model": {"data": "x"}}], "has no effect: no subsequent stage can use its scores"),
        ([USED], r"reward: no stage before it trains a scorer \(reward_model\)"),
        (
            [{"reward_model": {"data": "x", "until": {"plateau": 3}}}, USED],
            "until: has no effect: its reward head is fitted",
        ),
    ],
)
def test_reward_model_without_training_or_use_is_refused(stages, message):
    with pytest.raises(RecipeError, match=message):
        list_stages(recipe(*stages))


@pytest.mark.slow
def test_reward_model_of_custom_pairs_scores_the_following_stage(tmp_path):
    written(tmp_path / "pairs.jsonl", pairs(40))
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    scored = {"reward_model": {"data": str(tmp_path / "pairs.jsonl")}}
    summary = train(recipe(scored, USED), tmp_path / "run", progress=progress)
    report = summary.written["reward_models"]["1-reward_model"]
    assert (report["tried_on"], report["tasks"]) == (8, 32)
    assert 0 <= report["accuracy"] <= 1
    assert any("of the pairs of 8 held-out tasks in order" in line for line in lines)
    metrics = (tmp_path / "run/stages/2-reinforcement/metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    assert all(row["reward/mean"] == pytest.approx(row["reward/learned"]) for row in rows)
    folders = [stage["folder"] for stage in summary.written["stages"]]
    assert folders == ["stages/1-reward_model", "stages/2-reinforcement"]
    (tmp_path / "run").rename(tmp_path / "moved")
    final_policy(tmp_path / "moved")  # a run can be moved


@pytest.mark.slow
def test_reward_model_of_sampled_episodes_is_the_same_after_kills(tmp_path):
    sampled = {"sampling": {"steps": 2, "tasks_per_step": 16}}
    scored = {"reward_model": {"data": {"from_stage": "sampling"}, "objective": "outcomes", "steps": 20}}
    resolved = recipe(sampled, scored, USED)
    train(resolved, tmp_path / "whole", progress=Progress(quiet=True))
    for steps in itertools.chain((2, 1), itertools.repeat(9)):
        try:
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            continue
        break
    one, other = (RewardModel(tmp_path / name / "stages/2-reward_model/model") for name in ("whole", "killed"))
    assert torch.equal(one.weight, other.weight)
    assert one.weight.abs().sum() > 0
    ends = [final_policy(tmp_path / name).model.state_dict() for name in ("whole", "killed")]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


@pytest.mark.slow
def test_too_few_held_out_pairs_are_reported(tmp_path):
    written(tmp_path / "pairs.jsonl", pairs(4))
    stages = [{"reward_model": {"data": str(tmp_path / "pairs.jsonl")}}, USED]
    with pytest.raises(WhetstoneError, match="4 tasks have a better and a worse episode; 5 or more"):
        train(recipe(*stages), tmp_path / "run", progress=Progress(quiet=True))
