"""Custom columns: estimators read a function that a recipe names by its name, and errors are one line."""

import asyncio
import json
import pickle
import re

import pytest
import torch

import support.custom_columns as yours
from support.small import SMALL, TEACHING
from whetstone.analysis import Explainer
from whetstone.assembly import assemble
from whetstone.errors import CreditError, RecipeError
from whetstone.learning.columns import collect_columns, column, is_readable_from_record
from whetstone.recipe import ReinforcementSettings, load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

NOVEL = ["custom_columns=['support.custom_columns:novelty']", "advantage=support.custom_columns:by_novelty"]


def small(*overrides):
    return load_recipe("demo", [*SMALL, "ablations=null", TEACHING, *overrides])


@pytest.mark.slow
def test_estimator_reads_a_custom_column_and_the_record_explains_it(tmp_path):
    yours.recorded.clear()
    resolved = small("custom_columns=[{name: 'support.custom_columns:novelty', floor: 0.25}]", NOVEL[1])
    train(resolved, tmp_path / "run", progress=Progress(quiet=True))
    assert len(yours.recorded) == 2  # once per step
    numbers = {number for batch in yours.recorded for number in batch}
    assert numbers == {0.25, 1.0}
    explainer = Explainer(tmp_path / "run")
    one = explainer.list_trajectories(1)[0][0]
    chain = asyncio.run(explainer.explain_trajectory(one, weights=False)).chain
    assert any(link.what == "reads novelty" and set(link.value) <= numbers for link in chain)


def test_objective_reads_a_token_column_and_a_column_that_requires_a_forward_pass(tmp_path):
    both = "custom_columns=['support.custom_columns:surprise', 'support.custom_columns:first_of_turn']"
    named = [
        "advantage=support.custom_columns:by_surprise",
        "objective=support.custom_columns:on_first",
        "reinforcement.minibatches=2",
    ]
    train(small(both, *named), tmp_path, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seen = [row["first_fraction"] for row in rows if "first_fraction" in row]
    assert len(seen) == 2  # once per step
    assert all(0 < fraction < 1 for fraction in seen)
    assert not is_readable_from_record(["surprise"], collect_columns([yours.surprise]))
    assert is_readable_from_record(["novelty", "rewards"], collect_columns([yours.novelty]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["custom_columns=['support.custom_columns:undeclared']"],
            "custom_columns.0: .*undeclared is not declared a column: write @column",
        ),
        (["custom_columns=['support.custom_columns:novelt']"], 'custom_columns.0: .*no novelt; did you mean "novelty"'),
        (["custom_columns=[novelty]"], "custom_columns.0: no custom column"),
        (["custom_columns=[rewards]"], '"rewards" is a built-in column; it needs no entry'),
        (
            ["custom_columns=['support.custom_columns:rewards']"],
            'custom_columns.0: there is a column named "rewards" already',
        ),
        (
            ["custom_columns=['support.custom_columns:process_rewards']"],
            'there is a column named "process_rewards" already',
        ),
        (
            ["custom_columns=['support.custom_columns:learner_logprobs']"],
            'there is a column named "learner_logprobs" already',
        ),
        (
            ["custom_columns=['support.custom_columns:matched']", "reward=matched_calls"],
            'there is a column named "matched" already',
        ),
        (
            ["custom_columns=['support.custom_columns:novelty', 'support.custom_columns:novelty']"],
            'custom_columns.1: "novelty" is listed twice',
        ),
        (
            ["custom_columns=['support.custom_columns:novelty']"],
            "custom_columns: has no effect: neither credit nor objective reads novelty",
        ),
        (
            ["custom_columns=[{name: 'support.custom_columns:novelty', flor: 1}]"],
            'custom_columns.0.flor: no such option; did you mean "floor"',
        ),
        (
            ["custom_columns=[{name: 'support.custom_columns:novelty', floor: a}]"],
            "custom_columns.0.floor: input should be a valid number",
        ),
        (
            [NOVEL[0], "advantage=support.custom_columns:mistaken"],
            "advantage: reads novelty as one number per token.* PerTurn",
        ),
        (
            ["custom_columns=['support.custom_columns:elsewhere']", "advantage=support.custom_columns:by_elsewhere"],
            "by_elsewhere reads elsewhere, which this run does not produce; play somewhere else",
        ),
        (
            ["advantage=support.custom_columns:by_unknown"],
            r"by_unknown reads unheard_of.*@provides\(\"unheard_of\"\); or add a column, custom_columns: \[",
        ),
        (["custom_columns=['support.custom_columns:bad_level']"], "no level 'step'"),
    ],
)
def test_invalid_column_is_refused_before_sampling(overrides, message):
    with pytest.raises(RecipeError) as failure:
        assemble(small(*overrides)).check()
    line = str(failure.value)
    assert re.search(message, line), line
    assert "\n" not in line


@pytest.mark.parametrize("level", ["step", "turns", 3, None])
def test_unknown_level_is_refused_by_the_decorator(level):
    with pytest.raises(RecipeError, match="one number per trajectory, turn, token; there is no level"):
        column(level)


def test_decorator_without_a_level_is_refused_with_an_example():
    with pytest.raises(RecipeError, match=r'undeclared: .*@column\("turn"\)'):
        column(yours.undeclared)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (yours.too_few, r"column too_few returned 5 numbers, not one for each turn \(4\)"),
        (yours.words, "column words returned values that are not numbers"),
        (yours.alone, "column alone returned int, not numbers"),
        (yours.sly, "no model is available for sly → old_logprobs; .*reads_models=True"),
    ],
)
def test_invalid_numbers_of_a_column_are_one_line(function, message):
    with pytest.raises(CreditError, match=message):
        yours.batch_with(function)[function.__name__]


def test_circular_columns_are_refused():
    batch = yours.batch_with(yours.round_about, yours.and_back)
    with pytest.raises(CreditError, match="round_about reads itself: round_about → and_back → round_about"):
        batch["round_about"]


def test_columns_of_rewards_are_recomputed_after_shaping():
    batch = yours.batch_with(yours.twice_rewarded, yours.novelty)
    assert batch["twice_rewarded"].tolist() == pytest.approx([0.2, 2.4, 0.2, 0.4])
    novelty = batch["novelty"]
    batch.replace("outcomes", torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert batch["twice_rewarded"].tolist() == pytest.approx([0.2, 0.4, 0.2, 2.4])
    assert batch["rewards"].tolist() == pytest.approx([0.3, 1.3])
    assert batch["novelty"] is novelty  # unchanged
    batch.replace("process_rewards", torch.zeros(4, dtype=torch.float64))
    assert batch["rewards"].tolist() == [0.0, 1.0]


def test_custom_column_can_be_pickled():
    assembly = assemble(small(*NOVEL))
    spec = assembly.learning_spec(ReinforcementSettings())
    repeated = collect_columns(pickle.loads(pickle.dumps(spec.column_sources.added)))
    assert repeated["novelty"].level == "turn"
    assert repeated["novelty"].build is yours.novelty
