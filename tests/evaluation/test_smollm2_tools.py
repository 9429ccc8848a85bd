"""The benchmark of SmolLM2 adds finished seeds to the stored ones and plots means over them."""

import math
import re

import pytest

import smollm2_tools as benchmark


def finished_seed(seed, last=0.9, start=0.3, control=0.5):
    return {
        "seed": seed,
        "start": start,
        "last": last,
        "kept": last,
        "control": control,
        "curve": [[0, start, start], [2, last, last]],
        "control_curve": [[1, 0.4, 0.4], [2, control, control]],
        "control_steps": 2,
        "control_seconds": 540.0,
        "control_rate": 3e-4,
        "success_of_steps": [0.2, 0.6],
        "sampled_start": 0.1,
        "sampled_last": 0.8,
        "pass8_start": 0.7,
        "pass8_last": 1.0,
        "entropy_start": 0.1,
        "seconds": 600.0,
        "threads": 1,
        "start_by_kind": {"easy": start, "hard": 0.0},
        "last_by_kind": {"easy": last, "hard": 0.25},
        "processor": "a processor",
    }


def test_new_seeds_join_the_stored_ones_and_replace_their_own():
    stored = {"recipe": "a", "seeds": [finished_seed(0, last=0.5), finished_seed(3)]}
    merged = benchmark.merged_seeds(stored, [finished_seed(0), finished_seed(1)], "a")
    assert [(each["seed"], each["last"]) for each in merged] == [(0, 0.9), (1, 0.9), (3, 0.9)]
    assert benchmark.merged_seeds({}, [finished_seed(2)], "a") == [finished_seed(2)]


def test_seeds_of_another_recipe_are_not_mixed():
    with pytest.raises(SystemExit, match="another recipe: remove the file"):
        benchmark.merged_seeds({"recipe": "a", "seeds": [finished_seed(0)]}, [finished_seed(1)], "b")


def test_digest_ignores_the_seed_only():
    assert benchmark.recipe_digest(["seed=3"]) == benchmark.recipe_digest([])
    assert benchmark.recipe_digest(["reinforcement.learning_rate=1.0e-4"]) != benchmark.recipe_digest([])


def test_page_has_mean_gains_with_intervals_over_seeds():
    page = benchmark.page([finished_seed(0, last=0.9), finished_seed(1, last=0.8)])
    # gains 0.6 and 0.5: mean 55 points, standard error 5 points, t quantile 12.706
    assert "over its start +55.0 points (95 % interval -8.5 to +118.5)" in page
    assert "over the control +35.0 points" in page
    assert "(measured: 9 of 10 minutes, 9 of 10 minutes). Its learning rate is 0.0003" in page
    assert page.count("| `hard`: 0 → 25 % |") == 2
    mean, low, high = benchmark.interval([0.6, 0.5])
    assert math.isclose((low + high) / 2, mean)


def test_page_of_one_seed_states_that_it_has_no_interval():
    assert "+60.0 points (one seed, so without an interval)" in benchmark.page([finished_seed(0)])


@pytest.mark.usefixtures("rendered")
def test_figure_has_three_named_curves():
    svg = benchmark.figure([finished_seed(0), finished_seed(1, last=0.8)])

    assert re.findall(r">((?:reinforcement|control)[^<]*)<", svg) == [
        "reinforcement, sampled at temperature 1",
        "reinforcement, greedy on test tasks",
        "control (more supervised steps), greedy on test tasks",
    ]
