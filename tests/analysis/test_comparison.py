"""`whetstone compare`: contenders on equal tasks and budgets, reuse of finished runs, and the page."""

import asyncio
import json

import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.analysis import comparison
from whetstone.analysis.comparison import build_contenders, compare, expand_sweep, learning_curve, run_key, stage_cost
from whetstone.analysis.replay_check import RunReplay
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.evaluation.effect_estimates import effects_against
from whetstone.evaluation.stage_results import compare_stage
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.reporting.comparison_page import (
    compute_band,
    format_effect,
    recipe_differences,
    summarize_verdict,
    table_lines,
)
from whetstone.training import train

GIVEN = [*SMALL, TEACHING, "reinforcement.steps=4"]
QUIET = Progress(quiet=True)


def test_sweeps_are_expanded():
    assert expand_sweep("a,b") == ["a", "b"]
    assert expand_sweep("[a,b]") == ["[a,b]"]
    assert expand_sweep("{name: x, y: [1, 2]}, z") == ["{name: x, y: [1, 2]}", "z"]
    assert expand_sweep('"a,b",c') == ['"a,b"', "c"]
    names = [c.name for c in build_contenders(["demo"], [*GIVEN, "advantage=opo,gpg"], budget={})]
    assert names == ["advantage=opo", "advantage=gpg"]
    names = [c.name for c in build_contenders(["demo", "ppo"], [*GIVEN, "rollout.temperature=0.9,1.0"], budget={})]
    assert names == ["demo temperature=0.9", "demo temperature=1.0", "ppo temperature=0.9", "ppo temperature=1.0"]


def assembled(recipes, overrides):
    keys = [*GIVEN, *overrides] if "frozen-lake" not in recipes else []
    for contender in build_contenders(recipes, keys, budget={}):
        assemble(contender.resolved).check()


@pytest.mark.parametrize(
    ("recipes", "overrides", "message"),
    [
        (["demo"], [], "compare needs two or more contenders"),
        (["demo", "frozen-lake"], [], "demo and frozen-lake are evaluated on different tasks"),
        (["demo"], ["advantage=opo,opo"], "is named twice"),
        (["demo"], ["evaluation.temperature=0.0,1.0"], "differ in evaluation.samples or evaluation.temperature"),
        (["demo"], ["advantage=opo,gpgg"], "gpgg"),
        (["demo", "dmeo"], [], 'did you mean "demo"'),
    ],
)
def test_invalid_comparisons_are_refused(recipes, overrides, message):
    with pytest.raises(RecipeError, match=message):
        assembled(recipes, overrides)


@pytest.mark.slow
def test_budget_ends_the_stage_also_after_a_resume(tmp_path):
    recipe = load_recipe("demo", [*GIVEN, "reinforcement.budget.episodes=7", "ablations=null"])
    train(recipe, tmp_path, progress=QUIET)
    assert stage_cost(tmp_path)["episodes"] == 8  # whole updates of 4
    weights = (tmp_path / "checkpoints").glob("*")
    before = sorted(path.name for path in weights)
    (tmp_path / "summary.json").unlink()
    train(recipe, tmp_path, resume=True, progress=QUIET)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*")) == before
    assert stage_cost(tmp_path)["episodes"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["sampled_tokens", "seconds"])
def test_budgets_in_other_units(unit, tmp_path):
    most = 0.001 if unit == "seconds" else 1
    recipe = load_recipe("demo", [*GIVEN, f"reinforcement.budget.{unit}={most}", "ablations=null"])
    train(recipe, tmp_path, progress=QUIET)
    x, y = learning_curve(tmp_path, unit)
    assert len(x) == len(y) == 1


async def replayed_updates(folder):
    updates = [each async for each in RunReplay(folder).recompute_all(updates=True)]
    return next(each for each in updates if each.what.startswith("updates"))


def rates(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["update/learning_rate"] for row in rows if row["stage"] == "reinforcement"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["sampled_tokens", "episodes"])
def test_schedules_span_the_steps_of_the_budget(unit, tmp_path):
    plan = ["reinforcement.warmup_fraction=0", "reinforcement.decay_fraction=1", "reinforcement.learning_rate=0.001"]
    full = load_recipe("demo", [*GIVEN, *plan, "ablations=null", "reinforcement.steps=6"])
    train(full, tmp_path / "whole", progress=QUIET)
    most = int(stage_cost(tmp_path / "whole")[unit])
    budget = load_recipe(
        "demo", [*GIVEN, *plan, "ablations=null", "reinforcement.steps=5000", f"reinforcement.budget.{unit}={most}"]
    )
    train(budget, tmp_path / "budget", progress=QUIET)
    by_steps, by_budget = rates(tmp_path / "whole"), rates(tmp_path / "budget")
    # six updates in both cases, and the learning rate decays over them
    assert by_steps == pytest.approx([0.001 * (6 - k) / 7 for k in range(6)])
    assert len(by_budget) in (5, 6, 7)
    assert by_budget[0] == pytest.approx(0.001, rel=1e-3)
    assert by_budget == sorted(by_budget, reverse=True)
    assert by_budget[-1] < 0.35 * by_budget[0]
    replayed = asyncio.run(replayed_updates(tmp_path / "budget"))
    assert (replayed.changed, replayed.count > 0) == (0, True)


@pytest.mark.slow
def test_steps_of_schedules_follow_the_budget():
    # two tasks of two episodes per step
    contenders = build_contenders(
        ["demo"], [*GIVEN, "advantage=opo,gpg", "reinforcement.steps=100"], budget={"episodes": 18}
    )
    assert [c.resolved.recipe.reinforcement.steps for c in contenders] == [5, 5]
    few = build_contenders(["demo"], [*GIVEN, "advantage=opo,gpg", "reinforcement.steps=3"], budget={"episodes": 18})
    assert [c.resolved.recipe.reinforcement.steps for c in few] == [3, 3]


def test_contenders_are_validated_before_the_first_run(tmp_path):
    done = whetstone(
        "compare", "demo", *GIVEN, "advantage=group_relative,turn_gae", "--output-dir", tmp_path / "page", "--seeds", 1
    )
    assert done.returncode == 2
    assert "advantage=turn_gae: " in done.stderr
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=1,2"], "seed: cannot be swept; every contender runs with the same seeds"),
        (["demo"], "demo: the contender is named twice"),
        (["advantage=opo,gpg", "--budget", "sampled_tokens"], "no maximum; write UNIT=MAXIMUM, such as"),
        (["advantage=opo,gpg", "--budget", "sampled_token=3"], 'did you mean "sampled_tokens"'),
        (["advantage=opo,gpg", "--budget", "episodes=1.5"], "episodes must be an integer"),
        (["advantage=opo,gpg", "--budget", "episodes=many"], '"many" is not a number'),
        (["advantage=opo,gpg", "--budget", "seconds=-1"], "must be greater than 0"),
    ],
)
def test_invalid_arguments_are_refused_before_any_run(arguments, message, tmp_path):
    done = whetstone("compare", "demo", *GIVEN, *arguments, "--output-dir", tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_exceeded_budget_is_reported(tmp_path):
    arguments = ["compare", "demo", *GIVEN, "advantage=opo,gpg", "--seeds", 1, "--output-dir", tmp_path]
    done = whetstone(*arguments, "--budget", "sampled_tokens=100000000")
    assert (
        "advantage=opo: ended with 0% of the budget (sampled_tokens) spent (reinforcement.steps, until)" in done.stdout
    )
    done = whetstone(*arguments, "--budget", "sampled_tokens=1")
    assert "times the budget (sampled_tokens): one update takes more" in done.stdout


@pytest.mark.slow
def test_only_new_contenders_are_run(tmp_path, monkeypatch):
    runs = []

    def counted(resolved, folder, **more):
        runs.append(folder.name)
        return train(resolved, folder, **more)

    monkeypatch.setattr(comparison, "train", counted)

    def compared(*values, seeds=(0, 1)):
        contenders = build_contenders(["demo"], [*GIVEN, f"advantage={','.join(values)}"], budget={"episodes": 8})
        return compare(contenders, seeds=seeds, folder=tmp_path, budget={"episodes": 8}, progress=QUIET)

    first = compared("group_relative", "opo")
    assert len(runs) == 4
    more = compared("group_relative", "opo", "gpg")
    assert len(runs) == 6
    output = more.to_json()
    assert [row["reused"] for row in output["contenders"]] == [2, 2, 0]
    assert {row["spent"]["episodes"] for row in output["contenders"]} == {8}
    assert len(output["pairs"]) == 3
    assert json.loads(json.dumps(output)) is not None
    assert first.to_json()["contenders"][0]["success"] == output["contenders"][0]["success"]


def test_run_key_depends_on_everything_that_determines_the_run(tmp_path, monkeypatch):
    def key(*more):
        return run_key(load_recipe("demo", [*GIVEN, *more]))

    assert key() == key()
    assert key() != key("seed=1")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_reward.py").write_text("async def mine(trajectory, task): ...\n")
    named = key("reward=own_reward:mine")
    (tmp_path / "own_reward.py").write_text("async def mine(trajectory, task): return 1\n")
    assert key("reward=own_reward:mine") != named


def test_bands_end_with_the_shortest_curve():
    x, middle, low, high = compute_band([([0, 10], [0.0, 1.0]), ([0, 5], [0.0, 0.0]), ([], [])])
    assert (x[0], x[-1]) == (0, 5)
    assert (low[-1], high[-1]) == (0, pytest.approx(0.5))
    assert middle[-1] == pytest.approx(0.25)
    assert compute_band([]) == ([], [], [], [])


def test_differences_of_recipes():
    result = recipe_differences({"a": "x: 1\ny: 2", "b": "x: 1\ny: 3", "c": "x: 1\ny: 2"})
    assert result == {"a": "x: 1\ny: 2", "b": "- y: 2\n+ y: 3", "c": "the same"}


def pair(one, other, p):
    return {
        "one": one,
        "other": other,
        "p_seeds": p,
        "difference": 0.1,
        "interval": (0.0, 0.2),
        "p_tasks": p,
        "effect": 0.1,
        "tasks": 9,
    }


def row(name, mean, before=0.3, **changes):
    difference = mean - before
    outcome = "better" if difference > 0.05 else "worse" if difference < -0.05 else "unclear"
    change = {"mean": difference, "interval": (difference - 0.05, difference + 0.05), "outcome": outcome}
    return {"name": name, "mean": mean, "success": [mean] * 3, "seeds": [0, 1, 2], "tool_calls": 1.0, "tokens": 9.0,
            "before": before, "untrained": 0.0, "change": change, "failed": {},
            "spent": dict.fromkeys(comparison.UNITS, 1.0), **changes}  # fmt: skip


def test_the_sentence_reports_no_more_than_the_intervals_and_ends_the_terminal_output():
    output = {
        "contenders": [row("a", 0.9), row("b", 0.5), row("c", 0.4)],
        "pairs": [pair("a", "b", 0.2), pair("a", "c", 0.01), pair("b", "c", 0.9)],
    }
    assert summarize_verdict(output) == (
        "a has the highest success, 90.0 %; over 3 seeds it is better than c, and cannot be distinguished from b."
    )
    equal = {**output, "pairs": [pair("a", "b", 0.2), pair("a", "c", 0.2)]}
    assert "it cannot be distinguished from b, c." in summarize_verdict(equal)
    assert table_lines(equal)[-1] == summarize_verdict(equal)
    assert "better than every other" in summarize_verdict(
        {**output, "pairs": [pair("a", "b", 0.01), pair("a", "c", 0.01)]}
    )
    assert any("a − c" in line for line in table_lines(output))


def test_comparison_warns_if_every_contender_ended_below_its_start():
    pairs = [pair("a", "b", 0.2)]
    lost = {"contenders": [row("a", 0.4, 0.7), row("b", 0.38, 0.72)], "pairs": pairs}
    assert "WARNING: every contender ended below its start" in summarize_verdict(lost)
    lines = table_lines(lost)
    assert any(line.startswith("a: 70 → 40 %, worse than its start (-30 points") for line in lines)
    assert any("70.0 %" in line and "0.0 %" in line for line in lines)  # start and untrained of a
    one_gained = {"contenders": [row("a", 0.8, 0.7), row("b", 0.38, 0.72)], "pairs": pairs}
    assert "WARNING" not in summarize_verdict(one_gained)


def test_the_change_of_a_contender_has_an_interval_over_seeds_or_over_tasks():
    def result(before, after):
        ends = ({"success": rate, "interval": [rate - 0.02, rate + 0.02], "episodes": 400} for rate in (before, after))
        return compare_stage("reinforcement", *ends)

    # -0.30, -0.28, -0.32: mean -0.30, s = 0.02; t(0.975, 2) = 4.3027, half = 4.3027 * 0.02 / sqrt(3) = 0.0497
    change = comparison.change_over_seeds([result(0.7, 0.4), result(0.7, 0.42), result(0.72, 0.4)])
    assert change.mean == pytest.approx(-0.3)
    assert change.interval == pytest.approx((-0.3497, -0.2503), abs=1e-4)
    assert change.outcome == "worse"
    # two seeds that lost 1 point each: the interval of each run has a half of 0.02 sqrt(2), that of their mean 0.02
    equal = comparison.change_over_seeds([result(0.7, 0.69), result(0.5, 0.49)])
    assert equal.interval == pytest.approx((-0.03, 0.01))
    assert equal.outcome == "unclear"
    assert comparison.change_over_seeds([result(0.7, 0.4)]) == result(0.7, 0.4).difference
    assert comparison.change_over_seeds([]).outcome == "unknown"


@pytest.mark.slow
def test_command_prints_and_writes_the_comparison(tmp_path, rendered):
    arguments = [
        "demo",
        *SMALL,
        "reinforcement.steps=2",
        "advantage=opo,gpg",
        "--seeds",
        "2",
        "--budget",
        "episodes=4",
        "--output-dir",
        str(tmp_path),
    ]
    done = whetstone("compare", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [one["name"] for one in printed["contenders"]] == ["advantage=opo", "advantage=gpg"]
    page = (tmp_path / "comparison.html").read_text()
    assert "<svg" in page
    assert "advantage=gpg" in page
    assert "Holm" in page
    repeated = whetstone("compare", *arguments)
    assert "4 of 4 runs were reused" in repeated.stdout
    for wrong, message in (
        (["demo", "gspo", "--budget", "tokens=3"], 'did you mean "sampled_tokens"'),
        (["demo", "gspo", "--budget", "episodes=many"], "is not a number"),
        (["advantage=a,b"], "RECIPE: missing"),
    ):
        refused = whetstone("compare", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert message in refused.stderr


def test_environment_variables_and_imported_code_are_part_of_the_run_key(tmp_path, monkeypatch):
    (tmp_path / "swept_reward.py").write_text("from swept_prices import PRICE\n\ndef paid(): ...\n")
    (tmp_path / "swept_prices.py").write_text("PRICE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEPT_TITLE", "one")
    monkeypatch.setenv("SWEPT_TOKEN", "first")
    keys = {
        "extends": "demo",
        "title": "${SWEPT_TITLE}",
        "reward": {"name": "swept_reward:paid", "token": "${SWEPT_TOKEN}"},
    }
    first = run_key(load_recipe(keys))
    monkeypatch.setenv("SWEPT_TOKEN", "second")
    assert run_key(load_recipe(keys)) == first
    monkeypatch.setenv("SWEPT_TITLE", "two")
    assert run_key(load_recipe(keys)) != first
    monkeypatch.setenv("SWEPT_TITLE", "one")
    (tmp_path / "swept_prices.py").write_text("PRICE = 2\n")
    assert run_key(load_recipe(keys)) != first


def test_effect_names_verdict_interval_and_the_seeds_that_are_needed():
    values = {"grpo": {0: 0.5, 1: 0.6, 2: 0.5}, "gigpo": {0: 0.6, 1: 0.6, 2: 0.5}}
    (effect,) = effects_against("grpo", values, ["gigpo"])
    line = format_effect(effect.to_json())
    # differences 0.1, 0, 0: mean 0.033, error 0.033, t(2) = 4.303: -0.110 to 0.177; run deviation 0.041
    assert line.startswith(
        "gigpo against grpo: cannot tell: +3.3 points (95 % -11.0 to +17.7, simultaneous), 3 seeds; "
    )
    assert line.endswith(f"; {effect.seeds_needed()} seeds detect 5 points with a power of 80 %")
    (single,) = effects_against("a", {"a": {0: 0.5}, "b": {0: 0.6}}, ["b"])
    assert format_effect(single.to_json()).endswith("+10.0 points (no interval), 1 seed; run more seeds")
