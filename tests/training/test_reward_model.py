"""A stage that trains a scorer: tried on tasks it did not see, and used by the stage behind it."""

import itertools
import json

import pytest
import torch

from tests_conversations import pairs, written
from tests_episodes import path, turn
from tests_small import StopAfter, Stopped
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.recipe import load_recipe, stages_of
from whetstone.reporting import Progress
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.learned.model import RewardModel
from whetstone.training import final_policy, train
from whetstone.training.reward_model import pairs_in

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=2",
         "rollout.group_size=2", "rollout.max_new_tokens=6", "reward=tests_small:odd"]  # fmt: skip
LEARNED = {"name": "reward_model", "stage": "previous", "outcome": "exact_number"}
USED = {"reinforcement": {"steps": 2, "tasks_per_step": 2}, "reward": LEARNED}


def recipe(*stages):
    return load_recipe("demo", PLAIN, stages=list(stages))


def said(text, reward):
    return path(text, reward, [turn(text)])


def test_each_better_episode_is_paired_with_each_worse_one():
    good, middling, bad = said("good", 1.0), said("middling", 0.5), said("bad", 0.0)
    found = {(pair.better, pair.worse) for pair in pairs_in([bad, good, middling])}
    ranked = [(good, middling), (good, bad), (middling, bad)]
    assert found == {(transcript(a), transcript(b)) for a, b in ranked}
    assert pairs_in([good, said("good", 0.0)]) == []  # they say the same
    assert pairs_in([good, path("unscored", None)]) == []


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([{"reward_model": {"data": "x"}}], "has no effect: no stage behind it could use its scores"),
        ([USED], r"reward: no stage before it trains a scorer \(reward_model\)"),
        (
            [{"reward_model": {"data": "x", "until": {"plateau": 3}}}, USED],
            "until: has no effect: its line is fitted whole",
        ),
    ],
)
def test_a_scorer_nobody_trains_or_uses_is_refused(stages, said):
    with pytest.raises(RecipeError, match=said):
        stages_of(recipe(*stages))


@pytest.mark.slow
def test_a_scorer_of_ones_own_pairs_rewards_the_stage_behind_it(tmp_path):
    written(tmp_path / "pairs.jsonl", pairs(40))
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    scored = {"reward_model": {"data": str(tmp_path / "pairs.jsonl")}}
    summary = train(recipe(scored, USED), tmp_path / "run", progress=progress)
    told = summary.written["reward_models"]["1-reward_model"]
    assert (told["tried_on"], told["tasks"]) == (8, 32)
    assert 0 <= told["accuracy"] <= 1
    assert any("of the pairs of 8 tasks it did not see in order" in line for line in lines)
    metrics = (tmp_path / "run/stages/2-reinforcement/metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    assert all(row["reward/mean"] == pytest.approx(row["reward/learned"]) for row in rows)
    folders = [stage["folder"] for stage in summary.written["stages"]]
    assert folders == ["stages/1-reward_model", "stages/2-reinforcement"]
    (tmp_path / "run").rename(tmp_path / "moved")
    final_policy(tmp_path / "moved")  # a run may be moved


@pytest.mark.slow
def test_a_scorer_of_what_was_sampled_is_the_same_after_kills(tmp_path):
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
def test_too_little_to_try_it_on_is_said(tmp_path):
    written(tmp_path / "pairs.jsonl", pairs(4))
    stages = [{"reward_model": {"data": str(tmp_path / "pairs.jsonl")}}, USED]
    with pytest.raises(WhetstoneError, match="4 tasks have a better and a worse episode; 5 or more"):
        train(recipe(*stages), tmp_path / "run", progress=Progress(quiet=True))
