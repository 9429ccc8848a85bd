"""`whetstone show`: a finished or running run on one page, and one trajectory turn by turn."""

import json
import shutil

import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.analysis import RunText
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "demo"
    changes = [*SMALL, "ablations=null", TEACHING, "rollout.group_size=4"]
    train(load_recipe("demo", changes), folder, progress=Progress(quiet=True))
    return folder


@pytest.fixture
def copied(run, tmp_path):
    """Copy the run, so that a test can modify it."""
    return shutil.copytree(run, tmp_path / "copied")


def an_id(run):
    return RunText(run).last_ids(1)[0]


def test_show_prints_settings_progress_and_results_of_a_run(run):
    done = whetstone("show", run)
    assert done.returncode == 0, done.stderr
    for text in ("A small agent learns", "tasks arithmetic", "; finished", "untrained", "supervised, 2 of 2 steps"):
        assert text in done.stdout
    assert "reinforcement, 2 of 2 steps" in done.stdout
    assert "nats per token" in done.stdout
    assert f"--trajectory '{an_id(run)}'" in done.stdout


def test_json_output_is_one_object(run):
    printed = json.loads(whetstone("show", run, "--json").stdout)
    assert printed["steps"] == 4
    assert printed["recipe"]["tasks"]["source"] == "arithmetic"
    assert list(printed["evaluations"]) == ["untrained", "supervised", "reinforcement"]


def test_turn_is_printed_with_its_agent_and_conversation(copied):
    path, id = copied / "trajectories" / "step-000002.jsonl", an_id(copied)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    row = next(row for row in rows if row["id"] == id)
    row["turns"][0] |= {"agent": "planner", "conversation": 1}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = whetstone("show", copied, "--trajectory", id, "--no-credit")
    first, *others = [line for line in done.stdout.splitlines() if line.startswith("turn ")]
    assert first.startswith("turn 0  agent planner, conversation 1, ")
    assert all("agent" not in line for line in others)


def test_running_run_is_printed_up_to_the_last_written_step(copied):
    (copied / "summary.json").unlink()
    with open(copied / "metrics.jsonl", "a") as file:
        file.write('{"stage": "reinforcement", "st')
    with open(copied / "trajectories" / "step-000002.jsonl", "a") as file:
        file.write('{"id": "half')
    done = whetstone("show", copied)
    assert done.returncode == 0, done.stderr
    assert "not finished" in done.stdout
    assert "reinforcement, 2 of 2 steps" in done.stdout
    assert whetstone("show", copied, "--trajectory", an_id(copied)).returncode == 0


def test_trajectory_is_a_conversation_with_the_credit_of_each_turn(run):
    done = whetstone("show", run, "--trajectory", an_id(run))
    assert done.returncode == 0, done.stderr
    for text in (an_id(run), "user", "turn 0", "assistant", "advantage", "ended by", "trained in update"):
        assert text in done.stdout
    without = whetstone("show", run, "--trajectory", an_id(run), "--no-credit").stdout
    assert "advantage" not in without
    printed = json.loads(whetstone("show", run, "--trajectory", an_id(run), "--json").stdout)
    assert printed["trajectory"]["id"] == an_id(run)
    assert set(printed["credit"]["turns"]) == {str(n) for n in range(len(printed["trajectory"]["turns"]))}


def test_episode_of_an_evaluation_is_printed_without_credit(run):
    line = (run / "trajectories" / "evaluation-untrained.jsonl").read_text().splitlines()[0]
    done = whetstone("show", run, "--trajectory", json.loads(line)["id"])
    assert done.returncode == 0, done.stderr
    assert "no credit: " in done.stdout


def test_unknown_id_is_answered_with_the_nearest(run):
    done = whetstone("show", run, "--trajectory", an_id(run)[:-1] + "9")
    assert done.returncode == 2
    assert "the nearest are" in done.stderr
    assert an_id(run)[:-1] in done.stderr.partition("nearest")[2]
    assert len(done.stderr.splitlines()) == 1


def test_folder_without_a_run_is_refused(tmp_path):
    done = whetstone("show", tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


@pytest.mark.parametrize("command", ["show", "why", "replay"])
def test_a_missing_run_is_answered_in_one_line_with_the_nearest(command, run):
    done = whetstone(command, f"{run}x")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "loading PyTorch" not in line]
    assert f'{run}x: no such file or run directory; did you mean "{run.name}"?' in line


def test_control_characters_of_messages_are_escaped(copied):
    path = copied / "trajectories" / "evaluation-untrained.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    row["id"], row["task_id"] = "odd#0", "\x1b[2Jcleared \x1b]0;owned\x07"
    path.write_text(json.dumps(row) + "\n")
    done = whetstone("show", copied, "--trajectory", "odd#0")
    assert "task cleared" in done.stdout
    assert not set(done.stdout) & set("\x1b\x07")
