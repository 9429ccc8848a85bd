"""A function a recipe names is a column like ours: estimators read it by name, what is wrong with it is one line."""

import asyncio
import json
import pickle
import re

import pytest
import torch

import tests_columns as yours
from tests_small import SMALL, TEACHING
from whetstone.analysis import Explainer
from whetstone.assembly import assemble
from whetstone.errors import CreditError, RecipeError
from whetstone.learning.columns import by_name, column, from_record
from whetstone.recipe import ReinforcementSettings, load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

NOVEL = ["custom_columns=['tests_columns:novelty']", "advantage=tests_columns:by_novelty"]


def small(*overrides):
    return load_recipe("demo", [*SMALL, "ablations=null", TEACHING, *overrides])


@pytest.mark.slow
def test_an_estimator_of_a_run_reads_it_and_it_is_explained_from_the_record_alone(tmp_path):
    yours.made.clear()
    resolved = small("custom_columns=[{name: 'tests_columns:novelty', floor: 0.25}]", NOVEL[1])
    train(resolved, tmp_path / "run", progress=Progress(quiet=True))
    assert len(yours.made) == 2  # once a step
    said = {number for batch in yours.made for number in batch}
    assert said == {0.25, 1.0}
    explainer = Explainer(tmp_path / "run")
    one = explainer.trajectories(1)[0][0]
    chain = asyncio.run(explainer.explain(one, weights=False)).chain
    assert any(link.what == "reads novelty" and set(link.value) <= said for link in chain)


def test_an_objective_reads_one_of_tokens_and_one_that_costs_a_pass_is_given_it(tmp_path):
    both = "custom_columns=['tests_columns:surprise', 'tests_columns:first_of_turn']"
    named = ["advantage=tests_columns:by_surprise", "objective=tests_columns:on_first", "reinforcement.minibatches=2"]
    train(small(both, *named), tmp_path, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seen = [row["first_fraction"] for row in rows if "first_fraction" in row]
    assert len(seen) == 2  # once a step
    assert all(0 < fraction < 1 for fraction in seen)
    assert not from_record(["surprise"], by_name([yours.surprise]))
    assert from_record(["novelty", "rewards"], by_name([yours.novelty]))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["custom_columns=['tests_columns:undeclared']"],
            "custom_columns.0: .*undeclared is not declared a column: write @column",
        ),
        (["custom_columns=['tests_columns:novelt']"], 'custom_columns.0: .*no novelt; did you mean "novelty"'),
        (["custom_columns=[novelty]"], "custom_columns.0: no custom column"),
        (["custom_columns=[rewards]"], '"rewards" is a built-in column; it needs no entry'),
        (["custom_columns=['tests_columns:rewards']"], 'custom_columns.0: there is a column named "rewards" already'),
        (["custom_columns=['tests_columns:process_rewards']"], 'there is a column named "process_rewards" already'),
        (["custom_columns=['tests_columns:learner_logprobs']"], 'there is a column named "learner_logprobs" already'),
        (
            ["custom_columns=['tests_columns:matched']", "reward=matched_calls"],
            'there is a column named "matched" already',
        ),
        (
            ["custom_columns=['tests_columns:novelty', 'tests_columns:novelty']"],
            'custom_columns.1: "novelty" is listed twice',
        ),
        (
            ["custom_columns=['tests_columns:novelty']"],
            "custom_columns: has no effect: neither credit nor objective reads novelty",
        ),
        (
            ["custom_columns=[{name: 'tests_columns:novelty', flor: 1}]"],
            'custom_columns.0.flor: no such option; did you mean "floor"',
        ),
        (
            ["custom_columns=[{name: 'tests_columns:novelty', floor: a}]"],
            "custom_columns.0.floor: input should be a valid number",
        ),
        ([NOVEL[0], "advantage=tests_columns:mistaken"], "advantage: reads novelty as one number a token.* PerTurn"),
        (
            ["custom_columns=['tests_columns:elsewhere']", "advantage=tests_columns:by_elsewhere"],
            "by_elsewhere reads elsewhere, which this run does not produce; play somewhere else",
        ),
        (
            ["advantage=tests_columns:by_unknown"],
            r"by_unknown reads unheard_of.*@provides\(\"unheard_of\"\); or add a column, custom_columns: \[",
        ),
        (["custom_columns=['tests_columns:bad_level']"], "no level 'step'"),
    ],
)
def test_what_is_wrong_with_one_is_said_before_anything_is_sampled(overrides, said):
    with pytest.raises(RecipeError) as failure:
        assemble(small(*overrides)).check()
    line = str(failure.value)
    assert re.search(said, line), line
    assert "\n" not in line


@pytest.mark.parametrize("level", ["step", "turns", 3, None])
def test_a_level_that_there_is_not_is_refused_where_it_is_written(level):
    with pytest.raises(RecipeError, match="one number per trajectory, turn, token; there is no level"):
        column(level)


def test_a_decorator_without_its_level_says_how_it_is_written():
    with pytest.raises(RecipeError, match=r'undeclared: .*@column\("turn"\)'):
        column(yours.undeclared)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (yours.too_few, r"column too_few returned 5 numbers, not one for each turn \(4\)"),
        (yours.words, "column words returned what is not numbers"),
        (yours.alone, "column alone returned int, not numbers"),
        (yours.sly, "no model here for sly → old_logprobs; .*reads_models=True"),
    ],
)
def test_numbers_that_cannot_be_a_column_are_one_line(function, said):
    with pytest.raises(CreditError, match=said):
        yours.batch_with(function)[function.__name__]


def test_columns_that_read_each_other_in_a_circle_say_so():
    batch = yours.batch_with(yours.round_about, yours.and_back)
    with pytest.raises(CreditError, match="round_about reads itself: round_about → and_back → round_about"):
        batch["round_about"]


def test_what_was_made_of_rewards_is_made_anew_once_those_are_made_over():
    batch = yours.batch_with(yours.twice_rewarded, yours.novelty)
    assert batch["twice_rewarded"].tolist() == pytest.approx([0.2, 2.4, 0.2, 0.4])
    novelty = batch["novelty"]
    batch.replaced("outcomes", torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert batch["twice_rewarded"].tolist() == pytest.approx([0.2, 0.4, 0.2, 2.4])
    assert batch["rewards"].tolist() == pytest.approx([0.3, 1.3])
    assert batch["novelty"] is novelty  # nothing of it changed
    batch.replaced("process_rewards", torch.zeros(4, dtype=torch.float64))
    assert batch["rewards"].tolist() == [0.0, 1.0]


def test_a_learner_in_another_process_can_be_told_of_one():
    assembly = assemble(small(*NOVEL))
    spec = assembly.learning_spec(ReinforcementSettings())
    again = by_name(pickle.loads(pickle.dumps(spec.column_sources.added)))
    assert again["novelty"].level == "turn"
    assert again["novelty"].build is yours.novelty
