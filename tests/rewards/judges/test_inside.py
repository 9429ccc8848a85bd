"""Judges are found wherever they are, and what they cost is in the metrics."""

import json

import pytest

from tests_small import SMALL
from whetstone.errors import NothingScoredError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards import REWARDS, make_reward
from whetstone.rewards.judge_usage import judge_metrics, judges_of, with_judges
from whetstone.training import train

YES = {"name": "scripted", "answers": "tests_judged:says_yes"}
NEVER = {"name": "scripted", "answers": "tests_judged:never"}
RUBRIC = {"name": "rubric", "criteria": ["x"], "judge": YES}


def test_they_are_found_in_terms_and_in_rewards_around_rewards():
    terms = {
        "a": RUBRIC,
        "b": {"name": "otc", "outcome": RUBRIC},
        "c": {"name": "ikea", "outcome": RUBRIC},
        "d": "exact_match",
    }
    reward = make_reward({"name": "composed", "terms": terms}, REWARDS)
    assert len(judges_of(reward)) == 3
    assert judges_of(make_reward("exact_number", REWARDS)) == []
    (other,) = judges_of(make_reward(RUBRIC, REWARDS))
    assert judges_of(with_judges(reward, lambda judge: other)) == [other]
    assert len(judges_of(reward)) == 3  # the reward itself is as it was


def test_what_they_were_used_for():
    reward = make_reward(RUBRIC, REWARDS)
    (judge,) = judges_of(reward)
    judge.meter.requests, judge.meter.cost = 3, 0.5
    assert judge_metrics(reward)["judge/requests"] == 3
    assert judge_metrics(reward)["judge/cost"] == 0.5
    assert judge_metrics(make_reward("exact_match", REWARDS)) == {}


def rows(tmp_path, judge, *more):
    judged = f"{{name: scripted, answers: 'tests_judged:{judge}'}}"
    reward = f"reward={{name: rubric, key: none, criteria: ['x'], judge: {judged}}}"
    recipe = load_recipe("demo", [*SMALL, reward, "supervised=null", "ablations=null", *more])
    train(recipe, tmp_path, progress=Progress(quiet=True))
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]


def test_a_run_says_so(tmp_path):
    found = rows(tmp_path, "says_yes")
    assert found[-1]["judge/requests"] > 0
    assert found[-1]["reward/rubric"] == 1


def test_a_judge_that_answers_in_prose_ends_a_run_before_anything_is_learned(tmp_path):
    said = "none of 4 episodes could be scored: .*the judge gave no answer of the shape asked for.*is no JSON"
    with pytest.raises(NothingScoredError, match=said):
        rows(tmp_path, "never")


def test_a_judge_that_now_and_then_answers_in_prose_leaves_no_number_there(tmp_path):
    told = [row for row in rows(tmp_path, "now_and_then", "reinforcement.steps=4") if row["episode/invalid"]]
    assert told
    for row in told:
        assert row["judge/failed"] > 0
        assert row["end_reason/infrastructure"] == pytest.approx(row["episode/invalid"] / 4)
        assert row["reward/mean"] == (None if row["episode/invalid"] == 4 else 1)
