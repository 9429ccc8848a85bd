"""A stage is compared with its own start, and a difference counts if its interval excludes 0."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.evaluation.intervals import wilson_interval
from whetstone.evaluation.stage_results import (
    compare_rates,
    compare_stage,
    difference_interval,
    format_percent,
    last_evaluation,
    read_stage_results,
    untrained_of,
)

rates = st.integers(0, 60).map(lambda successes: rate_of(successes, 60))


def rate_of(successes, count):
    return successes / count, wilson_interval(successes, count)


def evaluation(success, count=400, **more):
    interval = [0.0, 1.0] if success is None else list(wilson_interval(success * count, count))
    return {"success": success, "interval": interval, "episodes": count, **more}


def test_interval_of_independent_rates_equals_the_published_one():
    # Newcombe 1998, table II: 56 of 70 against 48 of 80, method 10: 0.0524 to 0.3339
    low, high = difference_interval(rate_of(48, 80), rate_of(56, 70))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@given(rates, rates, st.floats(-1, 1))
def test_the_interval_contains_the_difference_and_mirrors_when_the_ends_are_exchanged(one, other, r):
    low, high = difference_interval(one, other, r)
    assert -1 <= low <= other[0] - one[0] + 1e-12
    assert other[0] - one[0] - 1e-12 <= high <= 1
    assert difference_interval(other, one, r) == pytest.approx((-high, -low))


@given(rates, st.floats(0, 0.99))
def test_positive_correlation_of_the_tasks_narrows_the_interval(one, r):
    def width(correlation):
        low, high = difference_interval(one, one, correlation)
        return high - low

    assert width(r) <= width(0) + 1e-12


@pytest.mark.parametrize(("p1", "p2", "same"), [(0.77, 0.66, 0.5), (0.1, 0.2, 0.3), (0.5, 0.5, 0.8)])
def test_the_paired_interval_covers_the_true_difference_in_95_of_100_samples(p1, p2, same):
    # a fixed generator: 1,000 samples of 60 tasks, of which a fraction `same` has one difficulty for both evaluations
    draw, covered, count = np.random.default_rng(0), 0, 60
    for _ in range(1000):
        first = draw.random(count)
        second = np.where(draw.random(count) < same, first, draw.random(count))
        solved = [dict(enumerate(map(float, values < p))) for values, p in ((first, p1), (second, p2))]
        ends = (evaluation(sum(each.values()) / count, count) for each in solved)
        low, high = compare_rates(*ends, tuple(solved)).interval
        covered += low <= p2 - p1 <= high
    assert covered >= 930


def test_a_stage_is_better_worse_or_cannot_be_distinguished_from_its_start():
    lost, gained, equal = (
        compare_stage("reinforcement", evaluation(0.77), evaluation(after)) for after in (0.66, 0.9, 0.78)
    )
    assert lost.sentence.startswith("reinforcement: 77 → 66 %, worse than its start (-11 points, 95 % interval -17")
    assert (gained.outcome, equal.outcome) == ("better", "unclear")
    assert "77 → 78 %, cannot be distinguished from its start" in equal.sentence


def test_outcomes_of_the_same_tasks_show_a_difference_that_independent_samples_do_not():
    # 100 tasks: 6 are lost, none is gained
    first = {f"t{k}": float(k < 60) for k in range(100)}
    second = {f"t{k}": float(k < 54) for k in range(100)}
    ends = evaluation(0.60, 100), evaluation(0.54, 100)
    assert compare_rates(*ends).outcome == "unclear"
    paired = compare_rates(*ends, (first, second))
    assert (paired.outcome, paired.paired_tasks) == ("worse", 100)


def test_evaluations_of_other_tasks_are_compared_as_independent_samples():
    ends = evaluation(0.6, 100), evaluation(0.54, 100)
    first, second = ({f"{name}{k}": 1.0 for k in range(100)} for name in "ab")
    assert compare_rates(*ends, (first, second)) == compare_rates(*ends)


def test_an_evaluation_without_a_scored_episode_has_no_outcome():
    result = compare_stage("supervised", evaluation(None), evaluation(0.5))
    assert result.outcome == "unknown"
    assert result.sentence == "supervised: unknown → 50 %, unknown: an evaluation has no scored episode"
    assert math.isnan(read_stage_results({"stages": [json.loads(json.dumps(result.to_json()))]})[0].difference.mean)


def test_a_result_is_read_as_it_was_written():
    results = [compare_stage("supervised", evaluation(0.0), evaluation(0.77)),
               compare_stage("reinforcement", evaluation(0.77), evaluation(0.66))]  # fmt: skip
    summary = {"stages": [{"name": "0", "folder": "stages/0"}, *(result.to_json() for result in results)]}
    assert read_stage_results(json.loads(json.dumps(summary))) == results


def test_summaries_of_earlier_releases_are_read():
    evaluations = {"untrained": evaluation(0.0), "supervised": evaluation(0.77), "reinforcement": evaluation(0.66)}
    old = {"before": evaluations["untrained"], "after": evaluations["reinforcement"], "evaluations": evaluations}
    assert [(each.name, each.outcome) for each in read_stage_results(old)] == [
        ("supervised", "better"), ("reinforcement", "worse")
    ]  # fmt: skip
    assert (untrained_of(old)["success"], last_evaluation(old)["success"]) == (0.0, 0.66)
    oldest = {"before": evaluation(0.4), "after": evaluation(0.9)}
    assert [each.outcome for each in read_stage_results(oldest)] == ["better"]
    assert read_stage_results({"evaluations": {"untrained": evaluation(0.4)}}) == []


def test_percent_has_at_most_one_decimal():
    # -0.0004 is 0.0 after rounding, without the sign of -0.0
    assert [format_percent(rate) for rate in (0.745, 0.77, 0.0, 1.0, None, math.nan)] == [
        "74.5", "77", "0", "100", "unknown", "unknown"
    ]  # fmt: skip
    assert format_percent(-0.0004, "+") == "+0"
