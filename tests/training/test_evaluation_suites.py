"""Evaluation suites: results after every stage, in one run and in a chain, and bad input."""

import json

import pytest

from support.small import SMALL
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.evaluation_suites import find_suite_stage, suite_recipe


def recipe_of(suites, *changes, **sections):
    keys = [*SMALL, "ablations=null", "reward=support.small:parity", *changes]
    return load_recipe("demo", keys, evaluation={"suites": suites, "episodes": 4}, **sections)


def summary_of(run_dir):
    return json.loads((run_dir / "summary.json").read_text())["suites"]


@pytest.mark.slow
def test_suites_are_evaluated_before_training_and_after_every_stage(tmp_path):
    train(recipe_of({"short": {"stage": 2, "episodes": 3, "reward": "support.small:parity"}}),
          run_dir=tmp_path / "run", progress=Progress(quiet=True))  # fmt: skip
    suite = summary_of(tmp_path / "run")["suites"]["short"]
    assert list(suite["success"]) == ["untrained", "supervised", "reinforcement"]
    assert suite["stage"] == "reinforcement"
    assert suite["forward_transfer"] == pytest.approx(suite["success"]["supervised"] - suite["success"]["untrained"])
    stored = tmp_path / "run" / "trajectories" / "suites" / "short"
    assert len((stored / "evaluation-supervised.jsonl").read_text().splitlines()) == 3
    assert "Forgetting and transfer" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_chain_has_one_table_and_evaluates_no_end_of_a_stage_twice(tmp_path):
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    stages = [{"supervised": {}}, {"reinforcement": {}}]
    recipe = recipe_of({"same": {"stage": 1, "reward": "support.small:parity"}}, stages=stages)
    train(recipe, run_dir=tmp_path / "run", progress=progress)
    suite = summary_of(tmp_path / "run")["suites"]["same"]
    assert (list(suite["success"]), suite["stage"]) == (
        ["untrained", "1-supervised", "2-reinforcement"], "1-supervised")  # fmt: skip
    assert sum(line.startswith("suite same (") for line in lines) == 3
    assert any(line.split()[:2] == ["suite", "untrained"] for line in lines)


@pytest.mark.slow
def test_tasks_of_a_suite_in_the_training_data_are_reported(tmp_path):
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    suite = {"episodes": 6, "tasks": {"source": "support.overlapping_tasks:Twice"}, "reward": "support.small:parity"}
    recipe = recipe_of({"leak": suite}, "supervised=null", "reinforcement.steps=4")
    recipe = recipe.with_changes({"tasks": {"source": "support.overlapping_tasks:Twice"}})
    train(recipe, run_dir=tmp_path / "run", progress=progress)
    (line,) = [line for line in lines if line.startswith("evaluation.suites.leak: ")]
    assert "3 of 6 evaluation tasks are in the training data" in line


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ({}, "evaluation.suites.x: changes nothing; set tasks, environment or reward"),
        ({"policy.path": "y"}, "evaluation.suites.x.policy.path: a suite changes tasks, environment and reward only"),
        ({"tasks": {"source": "arithmetik"}, "stage": "third"}, 'evaluation.suites.x.stage: no stage "third"; the'),
    ],
)
def test_bad_suite_is_one_line(suite, message):
    resolved = recipe_of({"x": suite})

    def check():
        suite_recipe(resolved, "x", resolved.recipe.evaluation.suites["x"])
        find_suite_stage(resolved, "x", ["supervised", "reinforcement"])

    with pytest.raises(RecipeError) as caught:
        check()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_suites_are_refused_where_they_cannot_be_evaluated():
    with pytest.raises(RecipeError, match=r"evaluation\.suites\.x: cannot be evaluated with scale\.backend: ray"):
        recipe_of({"x": {"reward": "exact_match"}}, "scale=ray")
    with pytest.raises(RecipeError, match="names a folder"):
        recipe_of({"../x": {"reward": "exact_match"}})


def test_stage_of_a_suite_is_a_number_a_kind_or_a_name():
    resolved = recipe_of(
        {"x": {"reward": "exact_match", "stage": 2}, "y": {"reward": "exact_match", "stage": "imitate"}}
    )
    stages = ["1-imitate", "2-reinforcement"]
    assert [find_suite_stage(resolved, name, stages) for name in "xy"] == ["2-reinforcement", "1-imitate"]
