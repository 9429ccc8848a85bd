"""Judges inside of nested rewards are found, and their costs are metrics."""

import json

import pytest

from support.small import SMALL
from whetstone.errors import NoScoredEpisodesError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards import REWARDS, make_reward
from whetstone.rewards.judge_usage import find_judges, judge_metrics, replace_judges
from whetstone.training import train

YES = {"name": "scripted", "answers": "support.judges:says_yes"}
NEVER = {"name": "scripted", "answers": "support.judges:never"}
RUBRIC = {"name": "rubric", "criteria": ["x"], "judge": YES}


def test_judges_in_terms_and_wrapped_rewards_are_found():
    terms = {
        "a": RUBRIC,
        "b": {"name": "otc", "outcome": RUBRIC},
        "c": {"name": "ikea", "outcome": RUBRIC},
        "d": "exact_match",
    }
    reward = make_reward({"name": "composed", "terms": terms}, REWARDS)
    assert len(find_judges(reward)) == 3
    assert find_judges(make_reward("exact_number", REWARDS)) == []
    (other,) = find_judges(make_reward(RUBRIC, REWARDS))
    assert find_judges(replace_judges(reward, lambda judge: other)) == [other]
    assert len(find_judges(reward)) == 3  # the reward itself is unchanged


def test_usage_of_judges():
    reward = make_reward(RUBRIC, REWARDS)
    (judge,) = find_judges(reward)
    judge.meter.requests, judge.meter.cost = 3, 0.5
    assert judge_metrics(reward)["judge/requests"] == 3
    assert judge_metrics(reward)["judge/cost"] == 0.5
    assert judge_metrics(make_reward("exact_match", REWARDS)) == {}


def rows(tmp_path, judge, *more):
    judged = f"{{name: scripted, answers: 'support.judges:{judge}'}}"
    reward = f"reward={{name: rubric, key: none, criteria: ['x'], judge: {judged}}}"
    recipe = load_recipe("demo", [*SMALL, reward, "supervised=null", "ablations=null", *more])
    train(recipe, tmp_path, progress=Progress(quiet=True))
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]


def test_run_reports_the_usage(tmp_path):
    metrics = rows(tmp_path, "says_yes")
    assert metrics[-1]["judge/requests"] > 0
    assert metrics[-1]["reward/rubric"] == 1


def test_judge_that_answers_in_prose_ends_a_run_before_the_first_update(tmp_path):
    message = "none of 4 episodes could be scored: .*the judge returned no valid answer.*is not JSON"
    with pytest.raises(NoScoredEpisodesError, match=message):
        rows(tmp_path, "never")


def test_episode_with_an_invalid_judgement_has_no_reward(tmp_path):
    affected = [row for row in rows(tmp_path, "now_and_then", "reinforcement.steps=4") if row["episode/invalid"]]
    assert affected
    for row in affected:
        assert row["judge/failed"] > 0
        assert row["end_reason/infrastructure"] == pytest.approx(row["episode/invalid"] / 4)
        assert row["reward/mean"] == (None if row["episode/invalid"] == 4 else 1)
