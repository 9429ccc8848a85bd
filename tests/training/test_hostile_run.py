"""A third-party run directory is read without executing any of its content."""

import json
import shutil

import pytest

from support.cli import whetstone
from support.small import SMALL
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train


@pytest.fixture(scope="module")
def source_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    train(
        load_recipe("demo", [*SMALL, "ablations=null", "reinforcement.steps=1"]), folder, progress=Progress(quiet=True)
    )
    return folder


@pytest.fixture
def run(source_run, tmp_path):
    """Copy a run whose recipe names a module next to it; importing the module writes a file `ran`."""
    folder = tmp_path / "run"
    shutil.copytree(source_run, folder)
    touch = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    for name in (
        "planted",
        "peft",
        "httpx2",
        "brotli",
        "bitsandbytes",
    ):  # modules that other libraries import if they exist
        (folder / f"{name}.py").write_text(f"{touch}def reward(trajectory, task): ...\n")
    recipe = (folder / "recipe.yaml").read_text().splitlines()
    written = ["reward: planted:reward" if line.startswith("reward:") else line for line in recipe]
    (folder / "recipe.yaml").write_text("\n".join(written) + "\n")
    return folder


@pytest.mark.slow
def test_reading_a_run_executes_nothing_of_it(run, tmp_path):
    for options in ((), ("--json",), ("--step", "1")):
        result = whetstone("why", run, *options, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "ran").exists()


def test_playing_a_run_executes_the_components_of_its_recipe(run, tmp_path):
    whetstone("rollout", run, "-n", "1", cwd=tmp_path)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("store/journal.jsonl", '{"event": "nothing"}\n'),
        ("store/journal.jsonl", "[]\n"),
        ("store/journal.jsonl", '{"event": "consumed", "update": 0}\n'),
        ("store/journal.jsonl", "{}\n" * 3),
        ("store/turns.jsonl", '{"turn": 1}\n'),
        ("modules.json", '{"a": 1}'),
        ("modules.json", "[" * 100_000),
        ("recipe.yaml", "a: &a [*a ]\n"),
    ],
)
def test_content_that_no_run_writes_is_one_line(run, tmp_path, name, content):
    (run / name).write_text(content)
    result = whetstone("why", run, "--step", "1", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("file", ["../../secret.jsonl", "/etc/passwd", "..", ""])
def test_journal_cannot_reference_files_outside_of_its_run(run, tmp_path, file):
    (tmp_path / "secret.jsonl").write_text("{}\n")
    journal = run / "store" / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    changed = [{**event, "file": file} if event["event"] == "kept" else event for event in events]
    journal.write_text("".join(json.dumps(event) + "\n" for event in changed))
    result = whetstone("why", run, "--step", "1", cwd=tmp_path)
    assert result.returncode == 2
    assert "is not a file of trajectories" in result.stderr
