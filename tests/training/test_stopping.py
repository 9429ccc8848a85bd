"""A stage ends by its steps, its budget, success or a plateau, and a killed run ends at the same step."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small import SMALL, StopAfter, Stopped
from whetstone.errors import RecipeError
from whetstone.recipe import ReinforcementSettings, SupervisedSettings, UntilSettings, list_stages, load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.stopping import reached_condition, stopping_reason

QUIET = Progress(quiet=True)


def rows(values, name="reward/mean", stage="reinforcement"):
    return [{"stage": stage, "step": step, name: value} for step, value in enumerate(values, start=1)]


def test_success_is_reached_on_average_and_not_by_one_step():
    until = UntilSettings(success=0.9, window=2)
    assert reached_condition(rows([0.5, 1.0], "episode/success"), until, measure="reward") is None  # mean 0.75
    message = reached_condition(rows([0.5, 1.0, 0.8], "episode/success"), until, measure="reward")  # (1 + 0.8) / 2
    assert message == "success: 0.900 mean of 2 steps"
    assert reached_condition(rows([1.0], "episode/success"), until, measure="reward") is None  # fewer than two


def test_plateau_is_no_gain_over_the_best_earlier_value():
    until = UntilSettings(plateau=2, window=1, min_delta=0.25)
    assert reached_condition(rows([0.0, 0.5, 0.5]), until, measure="reward") is None  # one step since 0.5
    assert reached_condition(rows([0.0, 0.5, 0.5, 0.75]), until, measure="reward") is None  # 0.75 is 0.25 better
    message = reached_condition(rows([0.0, 0.5, 0.7, 0.7]), until, measure="reward")
    assert message == "plateau: reward 0.5, no better by 0.25 in 2 steps"


def test_lower_losses_are_better_and_steps_without_a_value_do_not_count():
    until = UntilSettings(plateau=1, window=2, min_delta=0.0)
    falling = rows([4.0, None, 3.0, 2.0, 1.0], "loss/total")
    assert reached_condition(falling, until, measure="loss") is None
    risen = reached_condition(
        [*falling, *rows([3.0], "loss/total")], until, measure="loss"
    )  # (1 + 3) / 2 after (2 + 1) / 2
    assert risen == "plateau: loss 1.5, no better by 0 in 1 steps"


@given(
    st.lists(st.floats(-5, 5), max_size=25),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from(["reward", "loss"]),
)
def test_plateau_counts_patience(values, plateau, window, least, measure):
    until = UntilSettings(plateau=plateau, window=window, min_delta=least)
    name = {"reward": "reward/mean", "loss": "loss/total"}[measure]
    better = -1 if measure == "loss" else 1
    is_reached = reached_condition(rows(values, name), until, measure=measure) is not None
    means = [better * sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
    best = [max(means[: i + 1]) for i in range(len(means))]
    if len(means) <= plateau:
        assert not is_reached
    elif abs(best[-1] - best[-1 - plateau] - least) > 1e-9:  # sums of floats are not the floats themselves
        assert is_reached == (best[-1] < best[-1 - plateau] + least)


def test_reason_of_the_end_is_named():
    settings = ReinforcementSettings(steps=3, budget={"episodes": 4})
    budget_rows = [row | {"cost_per_step/episodes": 2} for row in rows([0.0, 0.0, 0.0])]
    assert stopping_reason(budget_rows[:1], "reinforcement", settings) is None
    assert stopping_reason(budget_rows[:2], "reinforcement", settings) == "budget: episodes"
    assert stopping_reason(budget_rows[:2], "reinforcement", ReinforcementSettings(steps=3)) is None
    assert stopping_reason(budget_rows, "reinforcement", ReinforcementSettings(steps=3)) == "steps"
    both = ReinforcementSettings(steps=2, until={"plateau": 1, "window": 1})
    assert stopping_reason(budget_rows[:2], "reinforcement", both).startswith(
        "plateau"
    )  # its result is more important than its length
    assert stopping_reason(rows([0.0] * 2, stage="supervised"), "supervised", SupervisedSettings(steps=3)) is None


@pytest.mark.parametrize(
    ("key", "until", "message"),
    [
        ("reinforcement", "{window: 2}", "until: has no condition: set success or plateau"),
        (
            "reinforcement",
            "{success: 0.5, min_delta: 0.1}",
            "min_delta: has no effect: reinforcement.until.plateau is not set",
        ),
        ("supervised", "{success: 0.5}", "supervised.until.success: supervised samples no episodes"),
        ("supervised", "{plateau: 2, window: 1, monitor: reward}", "monitor: supervised samples no episodes"),
        ("reinforcement", "{plateau: 95}", "until: is never reached: with window 10 it takes 105 steps"),
    ],
)
def test_invalid_end_is_refused(key, until, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", [f"{key}.steps=100", f"{key}.until={until}"])


def test_warm_up_with_its_own_end_is_a_separate_stage():
    resolved = load_recipe("demo", ["ablations=null", "supervised.until={plateau: 5, window: 2}"])
    assert [stage.name for stage in list_stages(resolved)] == ["1-supervised", "2-reinforcement"]


@pytest.mark.slow
def test_run_killed_anywhere_ends_at_the_same_step(tmp_path):
    changes = [
        "ablations=null",
        "supervised=null",
        "reinforcement.steps=9",
        "reinforcement.checkpoint_interval_steps=2",
    ]
    until = "reinforcement.until={plateau: 2, window: 2, min_delta: 0.6}"
    resolved = load_recipe("demo", [*SMALL, *changes, until, "reward=support.small:parity"])
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    undisturbed = train(resolved, tmp_path / "whole", progress=progress)
    assert undisturbed.ends["reinforcement"].startswith("plateau: reward")
    assert any("reinforcement ended after step 4 of 9, by plateau" in line for line in lines)
    for steps in itertools.chain((1, 1, 2), itertools.repeat(9)):
        try:
            killed = train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            continue
        break
    assert killed.ends == undisturbed.ends

    def rewards_by_step(run):
        read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [(row["step"], row["reward/mean"]) for row in read]

    assert rewards_by_step(tmp_path / "killed") == rewards_by_step(tmp_path / "whole")
