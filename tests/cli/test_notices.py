"""Notices of the commands: options without effect, missing data, finished stages and interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

import mistakes
from support.cli import whetstone
from whetstone import training


@pytest.fixture
def shop(tmp_path):
    mistakes.write_files(mistakes.Mistake("", "", ""), tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The shop with a trained run."""
    folder = tmp_path_factory.mktemp("shop")
    mistakes.write_files(mistakes.Mistake("", "", ""), folder)
    done = whetstone("train", "shop.yaml", "reinforcement.steps=2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_resume_without_a_run_starts_one_with_a_notice(shop):
    done = whetstone("train", "shop.yaml", "--resume", cwd=shop)
    assert "runs/shop: no run to resume; a new one is started" in done.stderr
    assert done.returncode == 0
    repeated = whetstone("train", "shop.yaml", "--resume", cwd=shop)
    assert "this run is finished; `whetstone train runs/shop --resume reinforcement.steps=" in repeated.stderr
    assert repeated.returncode == 0


@pytest.mark.parametrize(
    ("command", "unread"),
    [
        (("evaluate", "runs/shop", "reinforcement.steps=99"), "reinforcement.steps=99"),
        (("evaluate", "runs/shop", "policy.tiny.hidden_size=64"), "policy.tiny.hidden_size=64"),
        (("evaluate", "shop.yaml", "rollout.group_size=3"), "rollout.group_size=3"),
        (("rollout", "runs/shop", "-n", "1", "advantage=opo"), "advantage=opo"),
        (("replay", "runs/shop", "reinforcement.steps=5"), "reinforcement.steps=5"),
    ],
)
def test_unused_overrides_are_reported(trained, command, unread):
    done = whetstone(*command, cwd=trained)
    assert f"whetstone: {unread} has no effect here" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "runs/shop", "evaluation.temperature=0.5", "evaluation.samples=2"),
        ("rollout", "runs/shop", "-n", "1", "rollout.temperature=0.5"),
        ("replay", "runs/shop", "reward=shop:right_price"),
    ],
)
def test_used_overrides_are_not_reported(trained, command):
    assert "no effect" not in whetstone(*command, cwd=trained).stderr


def test_missing_held_out_tasks_are_reported(trained):
    assert (
        "9 held-out tasks were requested, the source has 2"
        in whetstone("evaluate", "runs/shop", "--episodes", "9", cwd=trained).stderr
    )


def test_evaluation_refuses_folders_with_other_files(trained):
    done = whetstone("evaluate", "runs/shop", "--output-dir", ".", cwd=trained)
    assert "is not empty and holds no evaluation" in done.stderr
    assert whetstone("evaluate", "runs/shop", "--lm-eval", "runs", cwd=trained).stderr.startswith(
        "whetstone: --lm-eval runs: is a folder"
    )
    created = whetstone("evaluate", "runs/shop", "--output-dir", "kept", cwd=trained)
    assert created.returncode == 0, created.stderr
    assert whetstone("evaluate", "runs/shop", "--output-dir", "kept", cwd=trained).returncode == 0  # continues it


def test_checkpoint_is_evaluated_with_the_recipe_of_its_run(trained):
    folder = next((trained / "runs" / "shop" / "checkpoints").iterdir())
    evaluated = whetstone("evaluate", folder, cwd=trained)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "95 % interval" in evaluated.stdout


def test_why_explains_a_run_without_a_warm_up_from_its_first_step(trained):
    steps = whetstone("why", "runs/shop", "--step", "1", "--json", cwd=trained)
    name = json.loads(steps.stdout)["trajectories"][0][0]
    printed = whetstone("why", "runs/shop", name, "--json", cwd=trained)
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["from_weights"].startswith("update 1")
    assert "--turn: requires TRAJECTORY" in whetstone("why", "runs/shop", "--turn", "0", cwd=trained).stderr


def test_updates_of_a_run_without_a_warm_up_are_replayed_from_the_first(trained):
    done = whetstone("replay", "runs/shop", "--updates", cwd=trained)
    assert "updates 1 to 2" in done.stdout
    assert "differ" not in done.stdout
    assert done.returncode == 0, done.stdout


def test_damaged_record_is_not_replayed(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "runs" / "shop" / "store" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b"{damage\n", *lines[1:]]))
    done = whetstone("replay", "runs/shop", "--updates", cwd=tmp_path)
    assert "journal.jsonl:1: the line is damaged" in done.stderr
    shutil.rmtree(journal.parent)
    assert "the record has no updates to replay" in whetstone("replay", "runs/shop", "--updates", cwd=tmp_path).stderr


def test_run_without_learning_prints_a_notice(shop):
    shop.joinpath("same.py").write_text(
        "from whetstone.trajectory import Score\nasync def same(trajectory, task): return Score(0.5)\n"
    )
    done = whetstone("train", "shop.yaml", "reward=same:same", cwd=shop)
    assert "no update changed the weights: all groups equal" in done.stderr
    assert "start with demonstrations" not in done.stderr  # some episodes have a reward


def test_run_without_rewards_prints_the_remedy(shop):
    shop.joinpath("lost.py").write_text(
        "from whetstone.trajectory import Score\nasync def lost(trajectory, task): return Score(0.0, success=False)\n"
    )
    done = whetstone("train", "shop.yaml", "reward=lost:lost", cwd=shop)
    assert "no episode earned anything: start with demonstrations (supervised), easier tasks" in done.stderr


def test_traceback_is_printed_on_request(shop):
    with pytest.raises(ZeroDivisionError):
        whetstone("--traceback", "train", "shop.yaml", "advantage=shop:divides", cwd=shop)


def test_internal_error_keeps_its_traceback(shop, monkeypatch):
    monkeypatch.setattr(training, "train", Mock(side_effect=KeyError("ours")))
    with pytest.raises(KeyError):
        whetstone("train", "shop.yaml", cwd=shop)


def test_skipped_invalid_tasks_are_counted(shop):
    with open(shop / "shop.jsonl", "a") as file:
        file.write("{no\n[]\n")
    done = whetstone("train", "shop.yaml", "tasks.on_bad_row=skip", cwd=shop)
    assert "tasks: 2 invalid rows are skipped (tasks.on_bad_row: skip)" in done.stderr


@pytest.mark.slow
def test_closed_output_pipe_ends_quietly_and_other_broken_pipes_are_errors(shop):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f"{sys.executable} -m whetstone.cli.main recipes --json"
    left = subprocess.run(
        f"{command} | head -c 1", shell=True, cwd=shop, env=environment, capture_output=True, text=True, timeout=120
    )
    assert left.stdout in "[{"
    assert left.stderr == ""
    shop.joinpath("pipes.py").write_text(
        "import os\nclass Pipes:\n    def choose(self, *a):\n        raise BrokenPipeError(32, 'Broken pipe')\n"
    )
    done = whetstone("train", "shop.yaml", "curriculum=pipes:Pipes", cwd=shop)
    assert done.returncode == 2
    assert "pipes.py:4 (choose): BrokenPipeError" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_has_its_exit_code(shop, number):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "whetstone.cli.main", "train", "shop.yaml", "reinforcement.steps=100000"],
        cwd=shop, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = shop / "runs" / "shop" / "metrics.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "stopped; runs/shop is saved" in errors


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("localhost", "http://localhost/v1"),
        ("host-1.lan:8000/v1", "http://host-1.lan:8000/v1"),
    ],
)
def test_address_without_a_scheme_is_answered_with_the_url(address, url):
    refused = whetstone("evaluate", "demo", "--policy", address)
    assert (refused.returncode, refused.stdout) == (2, "")
    line = f"whetstone: --policy {address}: a URL starts with http:// or https://: --policy {url}\n"
    assert refused.stderr == line
