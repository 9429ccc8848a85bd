"""Contenders on the same tasks and budget; what was run is not run again; a page for people."""

import asyncio
import json

import pytest

from tests_cli import whetstone
from tests_small import SMALL, TEACHING
from whetstone.analysis import comparison
from whetstone.analysis.comparison import compare, contenders_of, key_of, learning_curve, spent, swept
from whetstone.analysis.replay import Replay
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.evaluation.stage_results import compare_stage
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.reporting.comparison import band_of, differences, table_lines, verdict_of
from whetstone.training import train

GIVEN = [*SMALL, TEACHING, "reinforcement.steps=4"]
QUIET = Progress(quiet=True)


def test_sweeps():
    assert swept("a,b") == ["a", "b"]
    assert swept("[a,b]") == ["[a,b]"]
    assert swept("{name: x, y: [1, 2]}, z") == ["{name: x, y: [1, 2]}", "z"]
    assert swept('"a,b",c') == ['"a,b"', "c"]
    names = [c.name for c in contenders_of(["demo"], [*GIVEN, "advantage=opo,gpg"], budget={})]
    assert names == ["advantage=opo", "advantage=gpg"]
    names = [c.name for c in contenders_of(["demo", "ppo"], [*GIVEN, "rollout.temperature=0.9,1.0"], budget={})]
    assert names == ["demo temperature=0.9", "demo temperature=1.0", "ppo temperature=0.9", "ppo temperature=1.0"]


def assembled(recipes, overrides):
    given = [*GIVEN, *overrides] if "frozen-lake" not in recipes else []
    for contender in contenders_of(recipes, given, budget={}):
        assemble(contender.resolved).check()


@pytest.mark.parametrize(
    ("recipes", "overrides", "said"),
    [
        (["demo"], [], "compare two or more"),
        (["demo", "frozen-lake"], [], "demo and frozen-lake are evaluated on other tasks"),
        (["demo"], ["advantage=opo,opo"], "is named twice"),
        (["demo"], ["evaluation.temperature=0.0,1.0"], "differ in evaluation.samples or evaluation.temperature"),
        (["demo"], ["advantage=opo,gpgg"], "gpgg"),
        (["demo", "dmeo"], [], 'did you mean "demo"'),
    ],
)
def test_what_cannot_be_compared(recipes, overrides, said):
    with pytest.raises(RecipeError, match=said):
        assembled(recipes, overrides)


@pytest.mark.slow
def test_a_budget_ends_the_stage_and_a_run_that_goes_on_knows_it(tmp_path):
    recipe = load_recipe("demo", [*GIVEN, "reinforcement.budget.episodes=7", "ablations=null"])
    train(recipe, tmp_path, progress=QUIET)
    assert spent(tmp_path)["episodes"] == 8  # whole updates of 4
    weights = (tmp_path / "checkpoints").glob("*")
    before = sorted(path.name for path in weights)
    (tmp_path / "summary.json").unlink()
    train(recipe, tmp_path, resume=True, progress=QUIET)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*")) == before
    assert spent(tmp_path)["episodes"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["sampled_tokens", "seconds"])
def test_other_units(unit, tmp_path):
    most = 0.001 if unit == "seconds" else 1
    recipe = load_recipe("demo", [*GIVEN, f"reinforcement.budget.{unit}={most}", "ablations=null"])
    train(recipe, tmp_path, progress=QUIET)
    x, y = learning_curve(tmp_path, unit)
    assert len(x) == len(y) == 1


async def replayed_updates(folder):
    found = [each async for each in Replay(folder).everything(updates=True)]
    return next(each for each in found if each.what.startswith("updates"))


def rates(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["update/learning_rate"] for row in rows if row["stage"] == "reinforcement"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["sampled_tokens", "episodes"])
def test_schedules_are_laid_out_over_what_ends_the_stage(unit, tmp_path):
    plan = ["reinforcement.warmup_fraction=0", "reinforcement.decay_fraction=1", "reinforcement.learning_rate=0.001"]
    whole = load_recipe("demo", [*GIVEN, *plan, "ablations=null", "reinforcement.steps=6"])
    train(whole, tmp_path / "whole", progress=QUIET)
    most = int(spent(tmp_path / "whole")[unit])
    budget = load_recipe(
        "demo", [*GIVEN, *plan, "ablations=null", "reinforcement.steps=5000", f"reinforcement.budget.{unit}={most}"]
    )
    train(budget, tmp_path / "budget", progress=QUIET)
    by_steps, by_budget = rates(tmp_path / "whole"), rates(tmp_path / "budget")
    # six updates either way, and the rate comes down over them
    assert by_steps == pytest.approx([0.001 * (6 - k) / 7 for k in range(6)])
    assert len(by_budget) in (5, 6, 7)
    assert by_budget[0] == pytest.approx(0.001, rel=1e-3)
    assert by_budget == sorted(by_budget, reverse=True)
    assert by_budget[-1] < 0.35 * by_budget[0]
    replayed = asyncio.run(replayed_updates(tmp_path / "budget"))
    assert (replayed.changed, replayed.count > 0) == (0, True)


@pytest.mark.slow
def test_what_is_laid_out_over_steps_is_laid_out_over_those_a_budget_pays_for():
    # two tasks of two episodes a step
    contenders = contenders_of(
        ["demo"], [*GIVEN, "advantage=opo,gpg", "reinforcement.steps=100"], budget={"episodes": 18}
    )
    assert [c.resolved.recipe.reinforcement.steps for c in contenders] == [5, 5]
    few = contenders_of(["demo"], [*GIVEN, "advantage=opo,gpg", "reinforcement.steps=3"], budget={"episodes": 18})
    assert [c.resolved.recipe.reinforcement.steps for c in few] == [3, 3]


def test_every_contender_is_tried_before_the_first_is_run(tmp_path):
    done = whetstone(
        "compare", "demo", *GIVEN, "advantage=group_relative,turn_gae", "--output-dir", tmp_path / "page", "--seeds", 1
    )
    assert done.returncode == 2
    assert "advantage=turn_gae: " in done.stderr
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["seed=1,2"], "seed: every contender is run with each of several seeds; --seeds says how many"),
        (["demo"], "demo is named twice"),
        (["advantage=opo,gpg", "--budget", "sampled_tokens"], "say how much, such as sampled_tokens=100000"),
        (["advantage=opo,gpg", "--budget", "sampled_token=3"], 'did you mean "sampled_tokens"'),
        (["advantage=opo,gpg", "--budget", "episodes=1.5"], "episodes are counted whole"),
        (["advantage=opo,gpg", "--budget", "episodes=many"], '"many" is not a number'),
        (["advantage=opo,gpg", "--budget", "seconds=-1"], "must be greater than 0"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(given, said, tmp_path):
    done = whetstone("compare", "demo", *GIVEN, *given, "--output-dir", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
def test_where_the_budget_did_not_decide_that_is_said(tmp_path):
    given = ["compare", "demo", *GIVEN, "advantage=opo,gpg", "--seeds", 1, "--output-dir", tmp_path]
    done = whetstone(*given, "--budget", "sampled_tokens=100000000")
    assert (
        "advantage=opo: ended with 0% of the budget (sampled_tokens) spent (reinforcement.steps, until)" in done.stdout
    )
    done = whetstone(*given, "--budget", "sampled_tokens=1")
    assert "times the budget (sampled_tokens): one update takes more" in done.stdout


@pytest.mark.slow
def test_only_what_is_new_is_run(tmp_path, monkeypatch):
    made = []

    def counted(resolved, there, **more):
        made.append(there.name)
        return train(resolved, there, **more)

    monkeypatch.setattr(comparison, "train", counted)

    def compared(*values, seeds=(0, 1)):
        contenders = contenders_of(["demo"], [*GIVEN, f"advantage={','.join(values)}"], budget={"episodes": 8})
        return compare(contenders, seeds=seeds, folder=tmp_path, budget={"episodes": 8}, progress=QUIET)

    first = compared("group_relative", "opo")
    assert len(made) == 4
    more = compared("group_relative", "opo", "gpg")
    assert len(made) == 6
    told = more.to_json()
    assert [row["reused"] for row in told["contenders"]] == [2, 2, 0]
    assert {row["spent"]["episodes"] for row in told["contenders"]} == {8}
    assert len(told["pairs"]) == 3
    assert json.loads(json.dumps(told)) is not None
    assert first.to_json()["contenders"][0]["success"] == told["contenders"][0]["success"]


def test_a_run_is_named_by_what_decides_it(tmp_path, monkeypatch):
    def key(*more):
        return key_of(load_recipe("demo", [*GIVEN, *more]))

    assert key() == key()
    assert key() != key("seed=1")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_reward.py").write_text("async def mine(trajectory, task): ...\n")
    named = key("reward=own_reward:mine")
    (tmp_path / "own_reward.py").write_text("async def mine(trajectory, task): return 1\n")
    assert key("reward=own_reward:mine") != named


def test_bands_go_as_far_as_all_curves_do():
    x, middle, low, high = band_of([([0, 10], [0.0, 1.0]), ([0, 5], [0.0, 0.0]), ([], [])])
    assert (x[0], x[-1]) == (0, 5)
    assert (low[-1], high[-1]) == (0, pytest.approx(0.5))
    assert middle[-1] == pytest.approx(0.25)
    assert band_of([]) == ([], [], [], [])


def test_what_differs():
    found = differences({"a": "x: 1\ny: 2", "b": "x: 1\ny: 3", "c": "x: 1\ny: 2"})
    assert found == {"a": "x: 1\ny: 2", "b": "- y: 2\n+ y: 3", "c": "the same"}


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
    told = {
        "contenders": [row("a", 0.9), row("b", 0.5), row("c", 0.4)],
        "pairs": [pair("a", "b", 0.2), pair("a", "c", 0.01), pair("b", "c", 0.9)],
    }
    assert verdict_of(told) == (
        "a has the highest success, 90.0 %; over 3 seeds it is better than c, and cannot be distinguished from b."
    )
    equal = {**told, "pairs": [pair("a", "b", 0.2), pair("a", "c", 0.2)]}
    assert "it cannot be distinguished from b, c." in verdict_of(equal)
    assert table_lines(equal)[-1] == verdict_of(equal)
    assert "better than every other" in verdict_of({**told, "pairs": [pair("a", "b", 0.01), pair("a", "c", 0.01)]})
    assert any("a − c" in line for line in table_lines(told))


def test_a_comparison_warns_if_every_contender_ended_below_its_start():
    pairs = [pair("a", "b", 0.2)]
    lost = {"contenders": [row("a", 0.4, 0.7), row("b", 0.38, 0.72)], "pairs": pairs}
    assert "WARNING: every contender ended below its start" in verdict_of(lost)
    lines = table_lines(lost)
    assert any(line.startswith("a: 70 → 40 %, worse than its start (-30 points") for line in lines)
    assert any("70.0 %" in line and "0.0 %" in line for line in lines)  # start and untrained of a
    one_gained = {"contenders": [row("a", 0.8, 0.7), row("b", 0.38, 0.72)], "pairs": pairs}
    assert "WARNING" not in verdict_of(one_gained)


def test_the_change_of_a_contender_has_an_interval_over_seeds_or_over_tasks():
    def result(before, after):
        ends = ({"success": rate, "interval": [rate - 0.02, rate + 0.02], "episodes": 400} for rate in (before, after))
        return compare_stage("reinforcement", *ends)

    # -0.30, -0.28, -0.32: mean -0.30, s = 0.02; t(0.975, 2) = 4.3027, half = 4.3027 * 0.02 / sqrt(3) = 0.0497
    found = comparison.change_over_seeds([result(0.7, 0.4), result(0.7, 0.42), result(0.72, 0.4)])
    assert found.mean == pytest.approx(-0.3)
    assert found.interval == pytest.approx((-0.3497, -0.2503), abs=1e-4)
    assert found.outcome == "worse"
    # two seeds that lost 1 point each: the interval of each run has a half of 0.02 sqrt(2), that of their mean 0.02
    equal = comparison.change_over_seeds([result(0.7, 0.69), result(0.5, 0.49)])
    assert equal.interval == pytest.approx((-0.03, 0.01))
    assert equal.outcome == "unclear"
    assert comparison.change_over_seeds([result(0.7, 0.4)]) == result(0.7, 0.4).difference
    assert comparison.change_over_seeds([]).outcome == "unknown"


@pytest.mark.slow
def test_the_command(tmp_path, rendered):
    given = [
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
    found = whetstone("compare", *given, "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert [one["name"] for one in told["contenders"]] == ["advantage=opo", "advantage=gpg"]
    page = (tmp_path / "comparison.html").read_text()
    assert "<svg" in page
    assert "advantage=gpg" in page
    assert "Holm" in page
    again = whetstone("compare", *given)
    assert "4 of 4 runs were there" in again.stdout
    for wrong, said in (
        (["demo", "gspo", "--budget", "tokens=3"], 'did you mean "sampled_tokens"'),
        (["demo", "gspo", "--budget", "episodes=many"], "is not a number"),
        (["advantage=a,b"], "name a recipe to compare"),
    ):
        refused = whetstone("compare", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert said in refused.stderr


def test_a_run_of_other_variables_or_imported_code_is_another_run(tmp_path, monkeypatch):
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
    first = key_of(load_recipe(keys))
    monkeypatch.setenv("SWEPT_TOKEN", "second")
    assert key_of(load_recipe(keys)) == first
    monkeypatch.setenv("SWEPT_TITLE", "two")
    assert key_of(load_recipe(keys)) != first
    monkeypatch.setenv("SWEPT_TITLE", "one")
    (tmp_path / "swept_prices.py").write_text("PRICE = 2\n")
    assert key_of(load_recipe(keys)) != first
