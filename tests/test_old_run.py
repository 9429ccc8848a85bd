"""A run that commit 9e27b57 wrote, interrupted in its second stage, is opened, shown, evaluated, explained and resumed.

Its recipe has many keys that were renamed since. In its files `OLD_RUN_FOLDER` is a placeholder for its folder.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from support.cli import whetstone
from whetstone.analysis import RunText
from whetstone.record import run_recipe
from whetstone.reporting import Progress
from whetstone.training import final_policy, train
from whetstone.viewer.runs import ViewedRun, open_runs

STORED = Path(__file__).parent / "data" / "run_9e27b57"
STAGES = ("1-supervised", "2-reinforcement")


def copy_run(folder):
    shutil.copytree(STORED, folder)
    for file in folder.rglob("*"):
        if file.suffix in (".json", ".yaml"):
            text = file.read_text().replace("OLD_RUN_FOLDER", str(folder))
            file.write_text(text.replace("tests_small:", "support.small:"))
    return folder / "run"


@pytest.fixture
def run_dir(tmp_path):
    return copy_run(tmp_path / "old")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """Return the run for tests that only read it."""
    return copy_run(tmp_path_factory.mktemp("old") / "old")


def checksum(run_dir):
    digest = hashlib.sha256()
    for name, tensor in sorted(final_policy(run_dir).model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def processor():
    """Return name, family and model; one name covers several generations."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    fields = (re.search(rf"^{field}\s*: (.+)$", text, re.MULTILINE) for field in ("model name", "cpu family", "model"))
    return " / ".join(match[1] for match in fields if match)


def test_its_recipe_is_read_with_the_names_of_this_release(unchanged):
    for folder in (unchanged, *(unchanged / "stages" / stage for stage in STAGES)):
        recipe = run_recipe(folder).recipe
        assert recipe.title.startswith("A run of an earlier release")
    assert recipe.reinforcement.tasks_per_step == 2
    assert recipe.curriculum.name == "ucb"
    assert len(recipe.rollout.replay) == len(recipe.rollout.trajectory_filters) == len(recipe.reward_shaping) == 1


def test_it_is_listed_and_viewed(unchanged, tmp_path):
    assert [run.name for run in open_runs([unchanged], cache=tmp_path)] == list(STAGES)
    run = ViewedRun(unchanged / "stages" / STAGES[1], "run", cache=tmp_path / "cache")
    run.refresh()
    assert (run.describe_progress()["stage"], run.describe_progress()["step"]) == ("reinforcement", 4)


def test_it_is_shown(unchanged):
    done = whetstone("show", unchanged)
    assert (done.returncode, done.stderr) == (0, "")
    assert "A run of an earlier release" in done.stdout
    summary = json.loads(whetstone("show", unchanged, "--json").stdout)
    assert summary["recipe"]["curriculum"]["name"] == "ucb"


def test_a_trajectory_is_shown_and_explained(unchanged):
    stage = unchanged / "stages" / STAGES[1]
    trajectory = RunText(stage).last_ids(1)[0]
    for command in (["show", stage, "--trajectory", trajectory], ["why", stage, trajectory]):
        done = whetstone(*command)
        assert done.returncode == 0, done.stderr
        assert trajectory in done.stdout


def test_it_is_evaluated(run_dir):
    done = whetstone("evaluate", run_dir / "stages" / STAGES[1], "--episodes", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 2


@pytest.mark.slow
def test_it_resumes_to_the_weights_of_the_earlier_release(run_dir):
    train(run_recipe(run_dir), run_dir, resume=True, progress=Progress(quiet=True))
    rows = RunText(run_dir).rows
    assert [(row["stage"], row["step"]) for row in rows][-4:] == [("reinforcement", step) for step in range(1, 5)]
    assert rows[-1]["replay/success_replay/stored"] > 0
    expected = json.loads((STORED / "resumed.json").read_text())
    machine = {"processor": processor(), "torch": torch.__version__}
    if any(expected[key] != value for key, value in machine.items()):
        pytest.skip("weights of another processor or build of PyTorch: the arithmetic differs")
    assert checksum(run_dir) == expected["weights"]
