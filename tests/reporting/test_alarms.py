"""Each sign is seen where it is, and not where the run does well."""

import math

import pytest

from whetstone.viewing.alerts import alerts_of, change


def rows(count=40, **keys):
    """Steps with these numbers: a function of the share of the run that is over, or a number. A scatter of a tenth of a
    percent keeps differences from being infinitely clear."""
    found = []
    for step in range(count):
        values = {name: of(step / (count - 1)) if callable(of) else of for name, of in keys.items()}
        scatter = 1 + 0.001 * (-1) ** step
        found.append({"stage": "reinforcement", "step": step + 1}
                     | {name.replace("__", "/"): value * scatter for name, value in values.items()})  # fmt: skip
    return found


def names(given):
    return [alert.name for alert in alerts_of(given)]


def rising(low, high):
    return lambda share: low + (high - low) * share


HEALTHY = {
    "episode__success": rising(0.2, 0.8), "reward__mean": rising(0.2, 0.8), "policy__entropy": rising(1.0, 0.4),
    "episode__action_tokens": 40.0, "group__zero_variance_fraction": rising(0.1, 0.4),
    "sampler__mismatch_kl": 1e-6, "update__grad_norm": 0.5, "time__rollout": 2.0, "time__generation": 1.5,
    "time__update": 1.0, "episode__invalid_fraction": 0.0, "update__skipped_fraction": 0.0,
}  # fmt: skip


def test_a_run_that_learns_raises_no_alarm():
    assert names(rows(**HEALTHY)) == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("entropy collapse", {"policy__entropy": rising(1.0, 0.01), "episode__success": 0.3, "reward__mean": 0.3}),
        ("reward hacking", {"episode__success": rising(0.6, 0.2), "reward__mean": rising(0.6, 2.0)}),
        ("falling success", {"episode__success": rising(0.6, 0.2), "reward__mean": rising(0.6, 0.2)}),
        (
            "length drift",
            {"episode__success": 0.5, "reward__mean": 0.5, "episode__action_tokens": rising(40, 100),
             "policy__entropy": 1.0},
        ),
        ("groups without a difference", {"group__zero_variance_fraction": rising(0.5, 1.0)}),
        ("growing mismatch", {"sampler__mismatch_kl": rising(1e-6, 0.1)}),
        ("starving engine", {"time__generation": 0.2}),
        ("failing episodes", {"episode__invalid_fraction": 0.2}),
        ("idle updates", {"update__skipped_fraction": 1.0}),
    ],
)  # fmt: skip
def test_each_sign_is_seen_alone(name, changed):
    assert names(rows(**{**HEALTHY, **changed})) == [name]


def test_one_gradient_of_twenty_times_the_median_is_a_spike_and_names_its_step():
    given = rows(**HEALTHY)
    given[30]["update/grad_norm"] = 10.0  # the others are about 0.5
    (alert,) = alerts_of(given)
    assert alert.name == "gradient spikes"
    assert "at step 31" in alert.said
    assert alert.step == 40


def test_longer_answers_and_less_doubt_are_no_alarm_where_success_rises_with_them():
    assert (
        names(rows(**{**HEALTHY, "episode__action_tokens": rising(40, 100), "policy__entropy": rising(1.0, 0.01)}))
        == []
    )


def test_entropy_that_falls_while_all_is_solved_is_no_collapse():
    assert names(rows(**{**HEALTHY, "policy__entropy": rising(1.0, 0.001), "episode__success": 0.97})) == []


def test_equal_groups_of_a_policy_that_solves_all_are_no_alarm():
    solved = {"group__zero_variance_fraction": 0.95, "episode__success": 0.97}
    assert names(rows(**{**HEALTHY, **solved})) == []


def test_nothing_is_said_of_trends_in_fourteen_steps():
    assert names(rows(14, **{**HEALTHY, "policy__entropy": rising(1.0, 0.0), "episode__success": 0.1})) == []
    assert alerts_of([]) == []


def test_numbers_that_are_missing_or_none_are_passed_over():
    given = rows(**HEALTHY)
    for row in given[::2]:
        row["policy/entropy"] = None
    assert names(given) == []
    assert names([{"stage": "reinforcement", "step": 1}] * 40) == []


def test_a_change_is_counted_in_its_standard_errors():
    # 15 steps: early the first 3, late the last 3; 1, 2, 3 against 4, 5, 6: variances 1 and 1, n = 3
    values = [1, 2, 3, *[0] * 9, 4, 5, 6]
    found = change([{"x": value} for value in values], "x")
    assert (found.early, found.late) == (2.0, 5.0)
    assert found.clear == pytest.approx(3 / math.sqrt(2 / 3))


def test_a_change_without_scatter_is_clear_and_none_is_none():
    flat = [{"x": 1.0}] * 20
    assert change(flat, "x").clear == 0.0
    assert change([*[{"x": 1.0}] * 10, *[{"x": 2.0}] * 10], "x").clear == math.inf
    assert change(flat[:14], "x") is None
