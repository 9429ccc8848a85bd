"""The commands: results on standard output, one line and exit code 2 for a mistake."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from support.cli import whetstone
from support.small import SMALL
from whetstone.cli.main import cli
from whetstone.cli.plan import describe_cost
from whetstone.errors import RecipeError
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.recipe import load_recipe
from whetstone.training.cost_estimate import RunCost, StageCost, StageRates, TrialResult


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    done = whetstone("train", "demo", *SMALL, "ablations=null", "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run", done


def test_train_prints_the_result(trained):
    run_dir, done = trained
    lines = done.stdout.splitlines()
    evaluations, stages = ["untrained", "supervised", "reinforcement"], ["supervised:", "reinforcement:"]
    assert [line.split()[0] for line in lines[:-1]] == [*evaluations, *stages]
    assert lines[-1].endswith(str(run_dir / "report.html"))
    assert "reinforcement 2/2" in done.stderr


def test_evaluate_prints_success_with_an_interval(trained):
    output = whetstone("evaluate", trained[0], "--episodes", 3)
    assert "95 % interval" in output.stdout
    printed = json.loads(
        whetstone("evaluate", trained[0], "--episodes", 3, "--samples", 2, "--temperature", 1, "--json").stdout
    )
    assert (printed["episodes"], sorted(printed["pass_at"])) == (6, ["1", "2"])


def test_overrides_of_a_run_are_parsed_values(trained):
    printed = json.loads(whetstone("evaluate", trained[0], "evaluation.episodes=3", "--json").stdout)
    assert printed["episodes"] == 3
    refused = whetstone("rollout", trained[0], "rollout.group_size=many")
    assert refused.returncode == 2
    assert "command line (rollout.group_size='many')  rollout.group_size" in refused.stderr


def test_rollout_prints_conversations(trained):
    output = whetstone("rollout", trained[0], "-n", 2)
    assert output.stdout.count("Compute ") == 2
    rows = [
        json.loads(line) for line in whetstone("rollout", "demo", "--expert", "-n", 2, "--json").stdout.splitlines()
    ]
    assert [row["reward"] for row in rows] == [1.0, 1.0]


def test_recipe_is_shown_with_the_default_options_of_its_components(tmp_path):
    (tmp_path / "absent.yaml").write_text("extends: demo\nreward: 'not_here:score'\n")  # shown without an import
    changes = ["objective={name: gspo, clip_low: 0.1}", "reinforcement.minibatches=2"]
    printed = whetstone("recipes", "show", "absent.yaml", *changes, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "# objective (gspo): clip_high: 0.0004, " in printed.stdout
    assert "# reward" not in printed.stdout
    (tmp_path / "again.yaml").write_text(printed.stdout)
    assert load_recipe(tmp_path / "again.yaml").recipe.objective.options == {"clip_low": 0.1}
    keys = json.loads(whetstone("recipes", "show", "demo", "objective=gspo", "--json").stdout)
    assert keys["objective.clip_low"] == {"value": 0.0003, "from": "default"}


def test_minutes_of_a_plan_add_up_to_the_total():
    rates = {"reinforcement": StageRates(seconds_per_update=60.0)}
    trial = TrialResult(rates, start_seconds=30.0, requests_per_episode=0.0, dollars_per_episode=0.0, seconds=1.0)
    stages = [StageCost("reinforcement", 2, 8, 0, 0, 0.0, 120.0)]
    lines = describe_cost(RunCost(stages, (), trial.start_seconds, trial)).splitlines()
    assert [line.split()[0] + line.split()[-1] for line in lines[1:4]] == ["start0.5", "reinforcement2.0", "total2.5"]
    without = describe_cost(RunCost([StageCost("reinforcement", 2, 8, 0, 0)], (), None, None))
    assert "start" not in without


def test_worlds_and_methods_are_listed_with_their_components():
    rows = {row["name"]: row for row in json.loads(whetstone("recipes", "--json").stdout)}
    assert {"demo", "gsm8k-tiny"} <= set(rows)
    assert rows["demo"]["parts"]["advantage"] == "group_relative"
    assert rows["gsm8k-tiny"]["needs"]
    assert (rows["demo"]["kind"], rows["dapo"]["kind"]) == ("world", "method")
    assert rows["dapo"]["parts"]["rollout.dynamic_sampling"] == "nonzero_variance"
    assert rows["dump"]["needs"][0].startswith("curriculum.kinds (kinds of tasks: values of the tag")


def test_doctor_prints_the_installation():
    printed = json.loads(whetstone("doctor", "--json").stdout)
    assert printed["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "torch" in printed["packages"]
    assert "machine" in whetstone("doctor").stdout


def test_doctor_checks_a_recipe_and_reports_whether_it_runs():
    ready = whetstone("doctor", "demo", *SMALL, "--json")
    printed = json.loads(ready.stdout)
    assert (ready.returncode, printed["ready"]) == (0, True)
    assert {"template", "reward", "sampler and learner", "largest step"} <= {
        check["name"] for check in printed["checks"]
    }
    missing = whetstone("doctor", "demo", "policy.tiny=null", "policy.path=nowhere")
    assert missing.returncode == 1
    assert missing.stdout.splitlines()[-1] == "not ready: parts"
    assert "nowhere: no such model folder" in missing.stdout


def test_doctor_reports_checks_that_did_not_finish_as_undecided(monkeypatch):
    async def two_checks(resolved, **options):
        yield Check("policy", CheckStatus.PASS, "loaded")
        yield Check("episodes", CheckStatus.WARN, "not finished in 15 s", is_finished=False)

    monkeypatch.setattr("whetstone.assembly.run_preflight_checks", two_checks, raising=False)
    output = CliRunner().invoke(cli, ["doctor", "demo"])
    assert (output.exit_code, output.stdout.splitlines()[-1]) == (
        0,
        "undecided, not finished before the deadline: episodes",
    )
    printed = json.loads(CliRunner().invoke(cli, ["doctor", "demo", "--json"]).stdout)
    assert (printed["ready"], printed["unfinished"]) == (None, ["episodes"])


def test_doctor_checks_an_engine_with_a_model(trained):
    checkpoints = sorted(path for path in (trained[0] / "checkpoints").iterdir() if path.is_dir())
    tried = CliRunner().invoke(cli, ["doctor", "engine=local", f"policy.path={checkpoints[-1]}"])
    assert tried.exit_code == 0, tried.output
    assert tried.output.splitlines()[-1] == "the engine meets the requirements of a run"
    assert "engine: weights" in tried.output


def test_doctor_without_a_recipe_requires_an_engine_and_a_model():
    for changes in (["engine=local"], ["policy.path=nowhere"]):
        with pytest.raises(RecipeError, match="an engine check requires a model: whetstone doctor engine"):
            CliRunner().invoke(cli, ["doctor", *changes], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "demoo"], 'no recipe named "demoo"; did you mean "demo"?'),
        (["train", "demo", "trainin.steps=3"], "trainin: no such key"),
        (["train", "none.yaml"], "none.yaml: no such recipe file"),
        (["train", "demo", "policy.tiny=null", "policy.path=nowhere"], "nowhere: no such model folder"),
        (["train", "gsm8k-tiny"], "no such folder; set path to a folder with train.jsonl"),
        (["rollout", "demo", "tasks={source: jsonl, path: gone.jsonl}"], "gone.jsonl: no such task file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, message):
    done = whetstone(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_a_run_directory_in_use_is_one_line_and_exit_code_2(trained):
    done = whetstone("train", "demo", *SMALL, "ablations=null", "--run-dir", trained[0])
    assert (done.returncode, "holds a run already" in done.stderr) == (2, True)


def test_whetstone_is_an_executable():
    command = [sys.executable, "-m", "whetstone.cli.main", "train", "demoo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert 'did you mean "demo"?' in done.stderr


def test_every_command_has_help():
    for command in ("train", "evaluate", "rollout", "recipes", "doctor"):
        done = whetstone(command, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith("Usage:")


def test_tasks_show_prints_tasks():
    output = whetstone("tasks", "show", "sokoban", "levels=[2]", "-n", "2", "--json")
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    assert [row["id"].startswith("sokoban/2/") for row in rows] == [True, True]
    printed = whetstone("tasks", "show", "sokoban", "-n", "1")
    assert "difficulty" in printed.stdout


@pytest.mark.slow
def test_environments_check_reports_success():
    printed = whetstone("environments", "check", "negotiation", "--episodes", "5", "--json")
    report = json.loads(printed.stdout)
    assert report["kept"] is True
    assert report["found"]["expert"] == 1.0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("tasks", "show", "sokobann"), 'did you mean "sokoban"'),
        (("tasks", "show", "sokoban", "levels=[9]"), "levels 1 to 3"),
        (("environments", "check", "sokoban", "max_step=3"), 'did you mean "max_steps"'),
        (("environments", "check", "agentgym", "url=http://x"), "--tasks"),
        (("environments", "check", "gymnasium", "id=FrozenLake-v2"), 'did you mean "FrozenLake-v1"'),
        (("environments", "serve", "sokobann"), 'did you mean "sokoban"'),
    ],
)
def test_mistake_about_an_environment_is_one_line(command, message):
    done = whetstone(*command)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
