"""Cost of a run: counted from the recipe, measured by a trial, and limited by a budget."""

import json

import pytest
from click.testing import CliRunner

from support.served_policy import TINY
from whetstone.cli.main import cli
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.training import train
from whetstone.training.budget import compute_spending
from whetstone.training.cost_estimate import count_episodes, estimate_cost, run_work
from whetstone.training.trial import plan_cost

SMALL = [
    TINY, "ablations=null", "supervised.steps=2", "supervised.batch_size=3", "reinforcement.steps=3",
    "reinforcement.tasks_per_step=2", "rollout.group_size=4", "evaluation.episodes=5",
]  # fmt: skip


def plan(*words):
    result = CliRunner().invoke(cli, ["plan", "demo", *SMALL, *words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.mark.slow
def test_counts_are_those_of_the_run(tmp_path):
    resolved = load_recipe("demo", [*SMALL, "evaluation.interval_steps=1", "evaluation.interval_episodes=2"])
    run = train(resolved, tmp_path / "run", progress=Progress(quiet=True))
    rows = Journal(tmp_path / "run").read()
    work = {part.name: part for part in run_work(resolved)}
    for stage in ("supervised", "reinforcement"):
        assert work[stage].updates == len([row for row in rows if row["stage"] == stage])
    assert work["reinforcement"].episodes == sum(row.get("cost_per_step/episodes", 0) for row in rows)
    evaluated = sum(each.episodes for each in [*run.evaluations.values(), *run.during.values()])
    assert work["evaluations"].episodes == evaluated
    assert count_episodes(resolved) == 6 + 24 + evaluated


def test_ablations_and_several_stages_are_counted():
    resolved = load_recipe("demo", [*SMALL, "ablations={without: {reinforcement.steps: 1}}"])
    names = [part.name for part in run_work(resolved)]
    kinds = ["supervised", "reinforcement", "evaluations"]
    assert names == [*kinds, *(f"ablation without: {kind}" for kind in kinds)]
    total = estimate_cost(resolved, judges=2).total
    assert (total.updates, total.episodes) == (2 + 3 + 2 + 1, 6 + 24 + 15 + 6 + 8 + 15)
    assert total.judge_requests == 2 * (24 + 15 + 8 + 15)
    assert (total.seconds, total.dollars) == (None, None)


def test_plan_works_without_a_gpu_and_a_trial_measures_time():
    without = plan()
    assert [stage["episodes"] for stage in without["stages"]] == [6, 24, 15]
    assert without["total"]["seconds"] is None
    assert {share["device"] for share in without["memory"]} == {"cpu"}


@pytest.mark.slow
def test_trial_measures_time_and_calls():
    measured = plan("--trial")
    assert all(stage["seconds"] > 0 for stage in measured["stages"])
    assert measured["total"]["seconds"] > sum(stage["seconds"] for stage in measured["stages"])
    assert 0 < measured["total"]["tool_calls"] <= plan()["total"]["tool_calls"]
    assert measured["trial"]["updates"] == {"supervised": 2, "reinforcement": 3}


@pytest.mark.slow
def test_trial_asks_before_it_calls_tools_that_write():
    resolved = load_recipe("demo", [*SMALL, "environment.effects={pocket_calculator: write}"])
    with pytest.raises(RecipeError, match="allow_effects"):
        plan_cost(resolved, with_trial=True)


def test_plan_for_gpus_refuses_a_trial():
    result = CliRunner().invoke(cli, ["plan", "demo", "--gpus", "8", "--trial"])
    assert "--trial measures this machine" in str(result.exception)


@pytest.mark.parametrize(
    ("costs", "dollars"),
    [([], 0.0), ([0.5, 0.75, 1.5], 1.5), ([1.0, 2.0, 0.25, 0.5], 2.5), ([2.0, 0.0, 1.0], 3.0)],
)
def test_price_of_judges_is_summed_over_the_processes_of_a_run(costs, dollars):
    rows = [{"stage": "reinforcement", "judge/cost": cost, "time/rollout": 1.0, "time/update": 0.5} for cost in costs]
    spent = compute_spending(rows)
    assert spent["dollars"] == pytest.approx(dollars)
    assert spent["hours"] == pytest.approx(1.5 * len(costs) / 3600)


@pytest.mark.slow
def test_trial_of_several_stages_reports_those_that_need_a_trained_policy():
    stages = "[{supervised: {}}, {sampling: {tasks_per_step: 2}}, {supervised: {data: {from_stage: sampling}}}]"
    small = [TINY, "ablations=null", "reinforcement=null", "supervised.steps=2", "evaluation.episodes=5"]
    cost = plan_cost(load_recipe("demo", [*small, f"stages={stages}"]), with_trial=True)
    names = [stage.name for stage in cost.stages]
    assert names == ["1-supervised", "2-sampling", "3-supervised", "evaluations"]
    measured = {stage.name: stage.seconds for stage in cost.stages}
    assert measured["1-supervised"] > 0
    if not cost.trial.updates["3-supervised"]:
        assert measured["3-supervised"] is None
        assert cost.total.seconds is None
        assert "none of its episodes solved its task" in cost.trial.error
