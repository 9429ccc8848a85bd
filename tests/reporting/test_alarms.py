"""Each alarm is raised by its sign, and a run that learns, or that does not change, raises none."""

import math
from pathlib import Path

import numpy as np
import pytest

from whetstone.reporting.alarms import (
    ALARMS,
    MISMATCH_LIMITS,
    falling_success,
    find_alarms,
    mismatch_limit,
    select_rows,
    stored_alarms,
)
from whetstone.reporting.change_detection import MIN_STEPS, find_change


def rows(count=40, **keys):
    """Return steps with these values: numbers, or functions of the fraction of the run that is over.

    A scatter of 0.1 % keeps differences from being infinitely clear.
    """
    result = []
    for step in range(count):
        values = {name: of(step / (count - 1)) if callable(of) else of for name, of in keys.items()}
        scatter = 1 + 0.001 * (-1) ** step
        result.append({"stage": "reinforcement", "step": step + 1}
                     | {name.replace("__", "/"): value * scatter for name, value in values.items()})  # fmt: skip
    return result


def exactly(count, **keys):
    values = {name.replace("__", "/"): value for name, value in keys.items()}
    return [{"stage": "reinforcement", "step": step + 1, **values} for step in range(count)]


def names(steps):
    return [alarm.name for alarm in find_alarms(steps)]


def rising(low, high):
    return lambda share: low + (high - low) * share


HEALTHY = {
    "episode__success": rising(0.2, 0.8), "reward__mean": rising(0.2, 0.8), "policy__entropy": rising(1.0, 0.4),
    "episode__action_tokens": 40.0, "group__zero_variance_fraction": rising(0.1, 0.4),
    "sampler__mismatch_kl": 1e-6, "update__grad_norm": 0.5, "time__rollout": 2.0, "time__generation": 1.5,
    "time__update": 1.0, "episode__invalid_fraction": 0.0, "update__skipped_fraction": 0.0,
    "end_reason__context_full": 0.01,
}  # fmt: skip


def test_a_run_that_learns_raises_no_alarm():
    assert names(rows(**HEALTHY)) == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("entropy collapse", {"policy__entropy": rising(1.0, 0.01), "episode__success": 0.3, "reward__mean": 0.3}),
        ("rising entropy", {"policy__entropy": rising(0.4, 1.2), "episode__success": 0.3, "reward__mean": 0.3}),
        ("reward hacking", {"episode__success": rising(0.6, 0.2), "reward__mean": rising(0.6, 2.0)}),
        ("falling success", {"episode__success": rising(0.6, 0.2), "reward__mean": rising(0.6, 0.2)}),
        (
            "length drift",
            {"episode__success": 0.5, "reward__mean": 0.5, "episode__action_tokens": rising(40, 100),
             "policy__entropy": 1.0},
        ),
        ("sampler mismatch", {"sampler__mismatch_kl": rising(1e-6, 0.1)}),
        ("starving engine", {"time__generation": 0.2}),
        ("failing episodes", {"episode__invalid_fraction": 0.2}),
        ("full contexts", {"end_reason__context_full": 0.3}),
        ("failing tools", {"tools__lookup__calls": 10.0, "tools__lookup__failed_fraction": 0.5}),
        ("cut results", {"tools__lookup__calls": 5.0, "tools__lookup__truncated_fraction": 0.6}),
        ("idle updates", {"update__skipped_fraction": 1.0}),
    ],
)  # fmt: skip
def test_each_sign_raises_its_alarm_and_no_other(name, changed):
    assert names(rows(**{**HEALTHY, **changed})) == [name]


def test_one_gradient_of_twenty_times_the_median_is_a_spike_and_names_its_step():
    steps = rows(**HEALTHY)
    steps[30]["update/grad_norm"] = 10.0  # the others are about 0.5
    (alarm,) = find_alarms(steps)
    assert alarm.name == "gradient spikes"
    assert "at step 31" in alarm.message
    assert alarm.step == 40


@pytest.mark.parametrize(
    ("success", "name", "remedy", "wrong_remedy"),
    [
        (1.0, "all groups correct", "harder tasks", "easier tasks"),
        (0.0, "all groups wrong", "demonstrations (supervised)", "harder tasks"),
        (0.5, "all groups equal", "larger groups", "harder tasks"),
    ],
)
def test_three_steps_of_equal_groups_have_a_remedy_that_depends_on_success(success, name, remedy, wrong_remedy):
    steps = exactly(3, group__zero_variance_fraction=1.0, episode__success=success)
    assert names(steps[:2]) == []
    (alarm,) = find_alarms(steps)
    assert alarm.name == name
    assert remedy in alarm.remedy
    assert wrong_remedy not in alarm.remedy
    steps[1]["group/zero_variance_fraction"] = 0.9
    assert names(steps) == []


def test_success_that_was_lost_is_another_cause_of_wrong_groups_than_tasks_that_are_too_hard():
    steps = exactly(8, group__zero_variance_fraction=1.0, episode__success=0.0)
    assert "easier tasks" in find_alarms(steps)[0].remedy
    steps[1] |= {"group/zero_variance_fraction": 0.2, "episode/success": 0.67}
    (alarm,) = (alarm for alarm in find_alarms(steps) if alarm.name == "all groups wrong")
    assert "was 67% at step 2" in alarm.message
    assert "lower learning rate" in alarm.remedy
    assert "easier tasks" not in alarm.remedy


def test_a_collapse_is_reported_after_six_steps():
    # measured: sampled success of a run whose learning rate is ten times too high, 256 episodes in 32 groups
    rates = (0.57, 0.67, 0.35, 0.15, 0.02, 0.0)
    steps = [{"stage": "reinforcement", "step": k + 1, "episode/success": rate, "episode/effective_samples": 60.0}
             for k, rate in enumerate(rates)]  # fmt: skip
    assert first_alarm(steps) == 6


def test_many_equal_groups_are_an_alarm_unless_most_tasks_are_solved():
    assert names(exactly(10, group__zero_variance_fraction=0.85, episode__success=0.05)) == ["all groups wrong"]
    assert names(exactly(10, group__zero_variance_fraction=0.85, episode__success=0.95)) == []


def test_a_reward_that_is_the_same_in_the_first_two_steps_is_constant():
    steps = exactly(2, episode__reward_min=0.5, episode__reward_max=0.5)
    assert names(steps[:1]) == []
    (alarm,) = find_alarms(steps)
    assert alarm.name == "constant reward"
    assert "the reward 0.5" in alarm.message
    assert "whetstone rewards audit" in alarm.remedy
    assert "\n" not in alarm.line
    other_value = exactly(2, episode__reward_min=0.5, episode__reward_max=0.5)
    other_value[1] |= {"episode/reward_min": 0.0, "episode/reward_max": 0.0}
    assert names(other_value) == []


def test_longer_episodes_and_lower_entropy_are_no_alarm_if_success_rises_with_them():
    changed = {"episode__action_tokens": rising(40, 100), "policy__entropy": rising(1.0, 0.01)}
    assert names(rows(**{**HEALTHY, **changed})) == []


def test_entropy_that_falls_while_all_is_solved_is_no_collapse():
    assert names(rows(**{**HEALTHY, "policy__entropy": rising(1.0, 0.001), "episode__success": 0.97})) == []


def test_no_trend_is_reported_in_fewer_than_fifteen_steps():
    assert names(rows(MIN_STEPS - 1, **{**HEALTHY, "policy__entropy": rising(1.0, 0.0), "episode__success": 0.1})) == []
    assert find_alarms([]) == []


def test_values_that_are_missing_or_none_are_left_out():
    steps = rows(**HEALTHY)
    for row in steps[::2]:
        row["policy/entropy"] = None
    assert names(steps) == []
    assert names([{"stage": "reinforcement", "step": 1}] * 40) == []


def test_a_change_is_counted_in_standard_errors_of_successive_steps():
    # 15 values: ten alternate between 0 and 1, five between 20 and 21
    values = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 20, 21, 20, 21, 20]
    result = find_change([{"x": value} for value in values], "x", 1)
    # scatter: 13 differences of 1 and one of 19: (13 + 361) / 2 / 14 = 13.357
    # first 10: 0.5, last 5: 20.4 -> 19.9 / sqrt(13.357 (1/10 + 1/5)) = 9.941; first 5: 0.4 -> 8.65
    assert (result.first_steps, result.last_steps) == (10, 5)
    assert (result.early, result.late) == (0.5, 20.4)
    assert result.errors == pytest.approx(19.9 / math.sqrt(374 / 28 * 0.3))
    assert find_change([{"x": value} for value in values], "x", -1) is None


def test_a_change_without_scatter_is_clear_and_none_is_none():
    flat = [{"x": 1.0}] * 20
    assert find_change(flat, "x", 1) is None
    assert find_change([{"x": k / 1000} for k in range(20)], "x", 1).errors > 4
    assert find_change(flat[:14], "x", 1) is None


@pytest.mark.parametrize("value", [1e308, -1e308, 10**400, math.nan, math.inf, True, None])
def test_any_number_in_a_file_is_read(value):
    keys = {key for row in rows(**HEALTHY) for key in row if "/" in key} | {
        "episode/effective_samples",
        "episode/reward_min",
    }
    steps = [
        {"stage": "reinforcement", "step": k + 1, **dict.fromkeys(keys, value if k % 2 else 0.5)} for k in range(40)
    ]
    for alarm in find_alarms(steps):
        assert alarm.message


def runs_of(rate, count, *, episodes, steps=100, seed=0):
    """Return `count` simulated runs whose sampled success at step t is binomial with probability `rate(t)`."""
    draw = np.random.default_rng(seed)
    solved = draw.binomial(episodes, [rate(step) for step in range(steps)], (count, steps)) / episodes
    return [
        [{"stage": "reinforcement", "step": k + 1, "episode/success": x, "episode/effective_samples": float(episodes)}
         for k, x in enumerate(run)]
        for run in solved.tolist()
    ]  # fmt: skip


def first_alarm(run):
    """Return the first step at which success counts as fallen, or None."""
    return next((k for k in range(1, len(run) + 1) if falling_success(run[:k]) is not None), None)


def test_alarm_of_success_is_rare_in_a_constant_run_and_early_after_a_fall():
    # 100 runs from a fixed generator; the slow test simulates 1,000
    flat = [first_alarm(run) for run in runs_of(lambda step: 0.77, 100, episodes=64)]
    assert sum(step is not None for step in flat) <= 5
    fallen = [first_alarm(run) for run in runs_of(lambda step: 0.77 if step < 10 else 0.66, 100, episodes=64)]
    assert sum(step is not None and step <= 50 for step in fallen) >= 90
    assert sum(step is not None and step <= 10 for step in fallen) <= 1  # it fell at step 11


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "episodes"), [(0.77, 64), (0.5, 16), (0.1, 16), (0.5, 4)])
def test_fewer_than_2_of_100_flat_runs_raise_the_alarm_of_success(rate, episodes):
    result = [first_alarm(run) for run in runs_of(lambda step: rate, 1000, episodes=episodes, seed=1)]
    assert sum(step is not None for step in result) <= 20


def test_correlated_episodes_of_a_group_need_a_larger_fall():
    falls = runs_of(lambda step: 0.77 if step < 10 else 0.66, 1, episodes=64, seed=3)[0]
    assert first_alarm(falls) is not None
    for row in falls:
        row["episode/effective_samples"] = 2.0  # of 64 episodes: two tasks that are always or never solved
    assert first_alarm(falls[:25]) is None


def test_a_fall_of_less_than_five_points_is_no_alarm_however_clear():
    large = runs_of(lambda step: 0.77 if step < 20 else 0.74, 1, episodes=100_000)[0]
    assert find_change(large, "episode/success", -1) is not None
    assert first_alarm(large) is None


def test_a_curriculum_is_named_as_another_cause_of_a_fall():
    steps = rows(**{**HEALTHY, "episode__success": rising(0.6, 0.2), "reward__mean": 0.3, "curriculum__stage": 1.0})
    assert "curriculum" in falling_success(steps).check


def test_the_mismatch_has_one_limit_that_depends_on_the_precision_of_the_sampler():
    assert mismatch_limit("torch.float32") == MISMATCH_LIMITS["float32"]
    assert mismatch_limit("float32", engine="vllm") == MISMATCH_LIMITS["bfloat16"]
    assert MISMATCH_LIMITS["float32"] < MISMATCH_LIMITS["float16"] < MISMATCH_LIMITS["bfloat16"]
    for dtype, limit in MISMATCH_LIMITS.items():
        below, above = (
            exactly(1, sampler__mismatch_kl=factor * limit, sampler__mismatch_limit=mismatch_limit(dtype))
            for factor in (0.9, 1.1)
        )
        assert (names(below), names(above)) == ([], ["sampler mismatch"])
    assert names(exactly(1, sampler__mismatch_kl=1.2e-3)) == []  # a run of an earlier release, in an unknown precision


def test_one_step_of_mismatch_among_three_is_no_alarm():
    steps = exactly(3, sampler__mismatch_kl=1e-6, sampler__mismatch_limit=1e-4)
    steps[-1]["sampler/mismatch_kl"] = 1.0
    assert names(steps) == []


def test_rows_of_the_last_reinforcement_stage_are_considered():
    first, second = exactly(3, group__zero_variance_fraction=1.0), exactly(2, group__zero_variance_fraction=0.5)
    supervised = [{"stage": "supervised", "step": 1, "loss/total": 1.0}]
    assert select_rows([*supervised, *first, *second, *supervised]) == second
    assert select_rows([*first, *supervised, *second]) == second
    assert select_rows(supervised) == []
    assert names([*first, *second]) == []


def test_rewards_of_a_stage_that_does_not_train_on_them_raise_no_alarm():
    equal = exactly(5, group__zero_variance_fraction=1.0, episode__reward_min=0.0, episode__reward_max=0.0,
                    sampler__mismatch_kl=0.5)  # fmt: skip
    assert names([{**row, "stage": "distillation"} for row in equal]) == ["sampler mismatch"]


def test_alarms_of_earlier_steps_are_read_from_the_metrics():
    steps = exactly(6)
    for row in steps[1:4]:
        row["alarm/full_contexts"] = 1.0
    assert stored_alarms(steps) == {"full contexts": (2, 4)}


def test_the_page_on_reading_a_run_lists_every_alarm_and_every_limit():
    page = (Path(__file__).parents[2] / "docs/guide/reading-a-run.md").read_text()
    section = page.partition("\n## Alarms\n")[2].partition("\n## ")[0]
    listed = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][2:]
    functions = [function.__name__.replace("_", " ") for function in ALARMS]
    equal = ["all groups correct", "all groups wrong", "all groups equal"]
    assert sorted(listed) == sorted({*functions, *equal} - {"equal groups"})
    for dtype, limit in MISMATCH_LIMITS.items():
        assert f"{limit:.0e} in {dtype}".replace("e-0", "e-") in section
