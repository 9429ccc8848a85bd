"""A run compares each stage with its start, and reports the same alarms in every place while it runs."""

import json
import shutil

import pytest

from support.cli import whetstone
from support.quiet_progress import Lines
from support.small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.evaluation.stage_results import read_stage_results
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress, write_report
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.training import RunSummary, train

CONSTANT = ["reward=support.small:always_solved", "reinforcement.steps=4", "ablations=null"]


@pytest.fixture(scope="module")
def constant(tmp_path_factory):
    """Return a finished run with a constant reward, and its lines."""
    progress, folder = Lines(), tmp_path_factory.mktemp("runs") / "constant"
    return train(load_recipe("demo", [*SMALL, *CONSTANT]), folder, progress=progress), progress.lines


def test_a_constant_reward_is_one_line_after_the_second_step(constant):
    run, lines = constant
    (line,) = [line for line in lines if "constant reward" in line]
    assert line.startswith("step 2 of reinforcement: ALARM constant reward: every episode of the first 2 steps")
    assert "whetstone rewards audit" in line
    assert "\n" not in line
    correct = [line for line in lines if "all groups correct" in line]
    assert len(correct) == 1
    assert correct[0].startswith("step 3 of reinforcement")
    assert "harder tasks" in correct[0]
    assert run.after.success == 1.0


def test_alarms_are_stored_and_equal_for_every_reader(constant):
    run, _ = constant
    rows = Journal(run.run_dir).read()
    raised = ["constant reward", "all groups correct"]
    assert [alarm.name for alarm in find_alarms(rows)] == raised
    assert stored_alarms(rows) == {"constant reward": (2, 4), "all groups correct": (3, 4)}
    page = (run.run_dir / "report.html").read_text()
    assert all(f"Alarm, {name}:" in page for name in raised)
    for command in ("why", "show"):
        answer = json.loads(whetstone(command, run.run_dir, "--json").stdout)
        assert [alarm["name"] for alarm in answer["alarms"]] == raised
        text = whetstone(command, run.run_dir).stdout
        assert all(f"ALARM {name}:" in text for name in raised)
        assert "reinforcement: 100 → 100 %, cannot be distinguished from its start" in text


def test_the_end_of_a_stage_is_the_start_of_the_next_and_is_evaluated_once(constant):
    run, lines = constant
    assert list(run.evaluations) == ["untrained", "supervised", "reinforcement"]
    supervised, reinforcement = run.stages
    assert supervised.after == reinforcement.before
    assert sum("supervised: success" in line for line in lines) == 1
    assert run.before is run.evaluations["supervised"]
    assert run.untrained is run.evaluations["untrained"]
    stored = json.loads((run.run_dir / "summary.json").read_text())
    assert {"before", "after"}.isdisjoint(stored)
    assert [stage["name"] for stage in stored["stages"]] == ["supervised", "reinforcement"]
    assert all(stage["difference"]["paired_tasks"] == 4 for stage in stored["stages"])
    assert set(stored["untrained"]) == {"success", "interval", "episodes"}
    assert read_stage_results(stored) == list(run.stages)


def test_a_run_of_an_earlier_release_is_read_and_judged(tmp_path, constant):
    run, _ = constant
    folder = tmp_path / "old"
    shutil.copytree(run.run_dir, folder)
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("untrained", "stages"):
        del summary[key]
    evaluations = list(summary["evaluations"].values())
    (folder / "summary.json").write_text(json.dumps({**summary, "before": evaluations[0], "after": evaluations[-1]}))
    old = RunSummary.read(folder)
    assert [(stage.name, stage.before, stage.after) for stage in old.stages] == [
        (stage.name, stage.before, stage.after) for stage in run.stages
    ]
    assert "reinforcement: 100 → 100 %" in whetstone("show", folder).stdout
    assert "reinforcement: 100 → 100 %" in write_report(folder).read_text()
    assert train(load_recipe("demo", [*SMALL, *CONSTANT]), folder, resume=True, progress=Lines()).stages == old.stages


def test_each_stage_is_judged_in_lines_and_in_a_notebook(constant):
    run, lines = constant
    for stage in run.stages:
        assert stage.sentence in lines
        assert stage.formatted_outcome in run._repr_html_()


def test_the_limit_of_the_mismatch_is_stored_with_each_update(constant):
    run, _ = constant
    assert {
        row["sampler/mismatch_limit"] for row in Journal(run.run_dir).read() if row["stage"] == "reinforcement"
    } == {1e-4}


def test_resumed_run_stores_the_alarms_of_an_undisturbed_one(tmp_path, constant):
    run, _ = constant
    resolved = load_recipe("demo", [*SMALL, *CONSTANT, "reinforcement.checkpoint_interval_steps=1"])
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "run", progress=StopAfter(3, of="reinforcement"))
    train(resolved, tmp_path / "run", resume=True, progress=Progress(quiet=True))
    alarms = [
        [sorted(key for key in row if key.startswith("alarm/")) for row in Journal(folder).read()]
        for folder in (run.run_dir, tmp_path / "run")
    ]
    assert alarms[0] == alarms[1]


def test_a_chain_of_stages_judges_each_against_its_own_start(tmp_path):
    recipe = tmp_path / "chain.yaml"
    recipe.write_text(
        "extends: demo\nablations: null\nsupervised: null\nreinforcement: null\nstages:\n"
        "- supervised: {steps: 2, batch_size: 4}\n"
        "- reinforcement: {steps: 2, tasks_per_step: 2}\n"
    )
    small = [each for each in SMALL if not each.startswith(("supervised", "reinforcement"))]
    progress = Lines()
    run = train(load_recipe(str(recipe), [*small, TEACHING]), tmp_path / "run", progress=progress)
    assert [stage.name for stage in run.stages] == ["1-supervised", "2-reinforcement"]
    assert run.stages[0].after == run.stages[1].before
    stored = json.loads((run.run_dir / "summary.json").read_text())
    assert [stage["folder"] for stage in stored["stages"]] == ["stages/1-supervised", "stages/2-reinforcement"]
    assert stored["untrained"] == stored["stages"][0]["before"]


def test_the_last_lines_of_the_command_judge_the_stages(tmp_path):
    done = whetstone("train", "demo", *SMALL, "ablations=null", "--run-dir", tmp_path / "run")
    assert "supervised: 0 → 0 %, cannot be distinguished from its start (+0 points" in done.stdout
    assert "reinforcement: 0 → 0 %, cannot be distinguished from its start (+0 points" in done.stdout
