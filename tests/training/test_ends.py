"""A stage ends by its steps, its budget, success or a plateau; and a run that was killed ends where it would have."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_small import SMALL, StopAfter, Stopped
from whetstone.errors import RecipeError
from whetstone.recipe import ReinforcementSettings, SupervisedSettings, UntilSettings, load_recipe, stages_of
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.ends import end_of, reached_in

QUIET = Progress(quiet=True)


def rows(values, name="reward/mean", stage="reinforcement"):
    return [{"stage": stage, "step": step, name: value} for step, value in enumerate(values, start=1)]


def test_success_is_reached_in_the_mean_and_not_by_one_lucky_step():
    until = UntilSettings(success=0.9, window=2)
    assert reached_in(rows([0.5, 1.0], "episode/success"), until, measure="reward") is None  # mean 0.75
    said = reached_in(rows([0.5, 1.0, 0.8], "episode/success"), until, measure="reward")  # (1 + 0.8) / 2
    assert said == "success: 0.900 in the mean of 2 steps"
    assert reached_in(rows([1.0], "episode/success"), until, measure="reward") is None  # there are not two yet


def test_a_plateau_is_no_gain_over_the_best_before():
    until = UntilSettings(plateau=2, window=1, min_delta=0.25)
    assert reached_in(rows([0.0, 0.5, 0.5]), until, measure="reward") is None  # one step since 0.5
    assert reached_in(rows([0.0, 0.5, 0.5, 0.75]), until, measure="reward") is None  # 0.75 is 0.25 better
    said = reached_in(rows([0.0, 0.5, 0.7, 0.7]), until, measure="reward")
    assert said == "plateau: reward 0.5, no better by 0.25 in 2 steps"


def test_of_a_loss_less_is_better_and_steps_that_measured_nothing_do_not_count():
    until = UntilSettings(plateau=1, window=2, min_delta=0.0)
    falling = rows([4.0, None, 3.0, 2.0, 1.0], "loss/total")
    assert reached_in(falling, until, measure="loss") is None
    risen = reached_in([*falling, *rows([3.0], "loss/total")], until, measure="loss")  # (1 + 3) / 2 after (2 + 1) / 2
    assert risen == "plateau: loss 1.5, no better by 0 in 1 steps"


@given(
    st.lists(st.floats(-5, 5), max_size=25),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from(["reward", "loss"]),
)
def test_a_plateau_is_what_patience_counts(values, plateau, window, least, measure):
    until = UntilSettings(plateau=plateau, window=window, min_delta=least)
    name = {"reward": "reward/mean", "loss": "loss/total"}[measure]
    better = -1 if measure == "loss" else 1
    told = reached_in(rows(values, name), until, measure=measure) is not None
    means = [better * sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
    best = [max(means[: i + 1]) for i in range(len(means))]
    if len(means) <= plateau:
        assert not told
    elif abs(best[-1] - best[-1 - plateau] - least) > 1e-9:  # sums of floats are not the floats themselves
        assert told == (best[-1] < best[-1 - plateau] + least)


def test_the_end_is_said_by_its_name():
    settings = ReinforcementSettings(steps=3, budget={"episodes": 4})
    told = [row | {"cost_per_step/episodes": 2} for row in rows([0.0, 0.0, 0.0])]
    assert end_of(told[:1], "reinforcement", settings) is None
    assert end_of(told[:2], "reinforcement", settings) == "budget: episodes"
    assert end_of(told[:2], "reinforcement", ReinforcementSettings(steps=3)) is None
    assert end_of(told, "reinforcement", ReinforcementSettings(steps=3)) == "steps"
    both = ReinforcementSettings(steps=2, until={"plateau": 1, "window": 1})
    assert end_of(told[:2], "reinforcement", both).startswith("plateau")  # what it came to says more than its length
    assert end_of(rows([0.0] * 2, stage="supervised"), "supervised", SupervisedSettings(steps=3)) is None


@pytest.mark.parametrize(
    ("key", "until", "said"),
    [
        ("reinforcement", "{window: 2}", "until: ends nothing: set success or plateau"),
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
def test_an_end_that_cannot_be_is_refused(key, until, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe("demo", [f"{key}.steps=100", f"{key}.until={until}"])


def test_a_warm_up_that_ends_by_itself_is_a_stage_of_its_own():
    resolved = load_recipe("demo", ["ablations=null", "supervised.until={plateau: 5, window: 2}"])
    assert [stage.name for stage in stages_of(resolved)] == ["1-supervised", "2-reinforcement"]


@pytest.mark.slow
def test_a_run_killed_anywhere_ends_where_it_would_have(tmp_path):
    changes = [
        "ablations=null",
        "supervised=null",
        "reinforcement.steps=9",
        "reinforcement.checkpoint_interval_steps=2",
    ]
    until = "reinforcement.until={plateau: 2, window: 2, min_delta: 0.6}"
    resolved = load_recipe("demo", [*SMALL, *changes, until, "reward=tests_small:parity"])
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    whole = train(resolved, tmp_path / "whole", progress=progress)
    assert whole.ends["reinforcement"].startswith("plateau: reward")
    assert any("reinforcement ended after step 4 of 9, by plateau" in line for line in lines)
    for steps in itertools.chain((1, 1, 2), itertools.repeat(9)):
        try:
            killed = train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            continue
        break
    assert killed.ends == whole.ends

    def told(run):
        read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [(row["step"], row["reward/mean"]) for row in read]

    assert told(tmp_path / "killed") == told(tmp_path / "whole")
