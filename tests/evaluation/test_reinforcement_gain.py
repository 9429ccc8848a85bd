"""The benchmark of reinforcement: default settings, paired intervals, and runs that are not repeated."""

import json
import sys

import pytest
from scipy.stats import ttest_1samp

import reinforcement_gain as benchmark
from support.small import SMALL


def gain(recipe="demo", seed=0, *, start=0.5, last=0.6, low=0.05, high=0.15):
    return benchmark.Gain(recipe, seed, 400, start, last, low, high, None, 10.0, None, 32)


def test_the_interval_is_that_of_a_paired_t_test():
    differences = [1.0, 0.0, -1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    expected = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert benchmark.paired_interval(differences) == pytest.approx((expected.low, expected.high))
    assert benchmark.paired_interval([1.0]) == (-float("inf"), float("inf"))


def test_keys_that_have_a_default_are_removed_and_the_budget_is_kept():
    shipped, default = (
        benchmark.recipe_of("textworld", 3, episodes=400, shipped=keeps, changes=[]).recipe for keeps in (True, False)
    )
    assert (shipped.reinforcement.learning_rate, shipped.reinforcement.full_rate_groups) == (2e-3, None)
    assert (default.reinforcement.learning_rate, default.reinforcement.full_rate_groups) == (3e-3, 32)
    assert default.reinforcement.optimizer == "muon"  # of the supervised stage
    assert default.reinforcement.steps == shipped.reinforcement.steps
    assert default.supervised == shipped.supervised
    assert (default.seed, default.evaluation.episodes) == (3, 400)


@pytest.mark.parametrize("name", benchmark.RECIPES)
def test_every_recipe_can_be_loaded_with_default_settings(name):
    recipe = benchmark.recipe_of(name, 0, episodes=400, shipped=False, changes=[]).recipe
    assert recipe.evaluation.episodes == 400
    assert recipe.reinforcement is not None


def test_recipes_count_as_gained_or_harmed_over_their_seeds():
    gains = [
        gain("a", 0, last=0.56), gain("a", 1, last=0.58),  # 7 points on average
        gain("b", last=0.52), gain("c", last=0.4, low=-0.15, high=-0.05),
    ]  # fmt: skip
    assert benchmark.ratios_of(gains) == pytest.approx({"gained": 1 / 3, "without_loss": 2 / 3})
    assert "| a | 2 | 50.0 % | 57.0 % | – | +7.0 " in benchmark.summary(gains)
    assert "| c | 0 | 400 | 50.0 % | 40.0 % | -10.0 (-15.0 to -5.0) | – | 32 / – | 10 |" in benchmark.table(gains)


@pytest.mark.slow
def test_a_finished_run_is_not_repeated_and_missing_data_is_reported(tmp_path, monkeypatch, capsys):
    changes = [*SMALL, "evaluation.validation_episodes=4", "evaluation.temperature=1.0", "tasks.path=nowhere"]
    small = [change for change in changes if not change.startswith("tasks.")]
    arguments = ["x", "--folder", str(tmp_path), "--seeds", "0", "--json", "--episodes", "4"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--recipes", "demo", *small])
    benchmark.main()
    first = json.loads(capsys.readouterr().out)
    (path,) = (tmp_path / "default").glob("*.json")
    before = path.stat().st_mtime_ns
    benchmark.main()
    assert json.loads(capsys.readouterr().out)["measured"] == first["measured"]
    assert path.stat().st_mtime_ns == before
    run_dir = tmp_path / "default" / "demo-0"
    resolved = benchmark.recipe_of("demo", 0, episodes=4, shipped=False, changes=small)
    start = benchmark.solved(run_dir / "trajectories" / "evaluation-supervised.jsonl")
    assert benchmark.evaluate_last(resolved, run_dir).keys() == start.keys()
    monkeypatch.setattr(sys, "argv", [*arguments, "--recipes", "gsm8k-tiny", *changes])
    benchmark.main()
    assert "nowhere" in json.loads(capsys.readouterr().out)["measured"]["skipped"]["gsm8k-tiny"]
