"""Judges are found wherever they are, and what they cost is in the metrics."""

import json

from tests_small import SMALL
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.rewards import REWARDS, make_reward
from whetstone.rewards.judges_inside import judge_metrics, judges_of, with_judges
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
    judge.meter.questions, judge.meter.cost = 3, 0.5
    assert judge_metrics(reward)["judge/questions"] == 3
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
    assert found[-1]["judge/questions"] > 0
    assert found[-1]["reward/rubric"] == 1


def test_a_judge_that_answers_in_prose_leaves_no_number_in_a_run(tmp_path):
    found = rows(tmp_path, "never")
    for row in found:
        assert row["reward/mean"] is None
        assert row["episode/invalid"] == 4
        assert row["ended/infrastructure"] == 1
        assert row["judge/failed"] > 0
