"""Why steps did or did not learn, from their metrics."""

import pytest

from whetstone.reporting import describe_learning, learning_rows, noise_advice


def step(number, **metrics):
    named = {key.replace("__", "/"): value for key, value in metrics.items()}
    return {"stage": "reinforcement", "step": number, "episode/success": 0.5, **named}


ROWS = [
    {"stage": "supervised", "step": 1},
    step(1, update__skipped_fraction=1.0, group__zero_variance_fraction=1.0, credit_filters__void_turns=0.0),
    step(
        2,
        update__skipped_fraction=0.0,
        group__zero_variance_fraction=0.25,
        credit_filters__void_turns=0.5,
        policy__clip_fraction=0.1,
    ),
]


def test_rows_per_step_list_lost_groups():
    first, second = learning_rows(ROWS)
    assert (first["from"], first["to"], first["all equal"], first["idle"]) == (1, 1, 1, 1)
    assert second["out by void_turns"] == 0.5
    assert second["clipped"] == 0.1
    assert describe_learning(first) == "nothing: all groups equal"
    assert describe_learning(second) == "most lost: out by void_turns"
    assert describe_learning({"from": 1, "to": 1, "success": 1.0, "idle": 0.0, "clipped": 0.01}) == "nearly everything"
    assert describe_learning({"idle": 0.0, "all equal": 0.4, "no credit": 0.5}) == "most lost: all equal"
    assert describe_learning({"idle": 0.0, "all equal": 0.0, "no credit": 0.5}) == "most lost: no credit"
    assert describe_learning({"idle": 1.0, "all equal": 0.3}) == "nothing: no credit"


def test_windows_hold_means():
    (window,) = learning_rows(ROWS, windows=1)
    assert (window["from"], window["to"]) == (1, 2)
    assert window["all equal"] == pytest.approx(0.625)
    assert len(learning_rows(ROWS, windows=9)) == 2


def test_a_run_without_reinforcement_has_no_rows():
    assert learning_rows(ROWS[:1]) == []
    assert learning_rows(ROWS[:1], windows=3) == []


def measured(groups, least, count=6):
    return [{"stage": "reinforcement", "update/groups": float(groups), "update/noise_scale_min": least}] * count


def test_batch_far_below_the_noise_scale_gets_advice():
    assert noise_advice(measured(32, 640.0)) == (
        "the batch of 32 groups is at least 20 times smaller than the gradient noise scale (update/noise_scale_min); "
        "increase reinforcement.tasks_per_step or reduce reinforcement.learning_rate"
    )


def test_a_sufficient_batch_few_measurements_and_other_stages_get_no_advice():
    assert noise_advice(measured(32, 60.0)) is None
    assert noise_advice(measured(32, 640.0, count=4)) is None
    assert noise_advice([row | {"stage": "supervised"} for row in measured(32, 640.0)]) is None
    assert noise_advice([]) is None
