"""The advice on batches far below the gradient noise scale appears in the terminal, in `why` and in the report."""

import json

import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress, write_report
from whetstone.training import train

ADVICE = "the batch of 2 groups is at least 20 times smaller than the gradient noise scale"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a run and replace its measurements by a noise scale of at least 40 groups."""
    folder = tmp_path_factory.mktemp("noise") / "run"
    changes = [*SMALL, TEACHING, "ablations=null", "supervised=null", "reinforcement.steps=5"]
    small = [change for change in changes if not change.startswith("supervised.")]
    train(load_recipe("demo", small), folder, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"update/groups": 2.0, "update/noise_scale_min": 40.0} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_measures_its_noise_scale(tmp_path):
    changes = [change for change in [*SMALL, TEACHING] if not change.startswith("supervised.")]
    train(
        load_recipe("demo", [*changes, "supervised=null", "ablations=null"]), tmp_path / "run",
        progress=Progress(quiet=True),
    )  # fmt: skip
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["update/groups"] == 2
    assert "update/gradient_signal" in first


def test_why_prints_it(run):
    assert ADVICE in whetstone("why", run).stdout
    printed = json.loads(whetstone("why", run, "--json").stdout)
    assert printed["noise_advice"].startswith(ADVICE)


def test_the_report_has_it(run):
    assert ADVICE.capitalize() in write_report(run).read_text()


def test_a_stage_reports_it_when_it_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("whetstone.training.single_run.noise_advice", lambda rows: f"{ADVICE}, after {len(rows)} steps")
    changes = [change for change in [*SMALL, TEACHING] if not change.startswith("supervised.")]
    train(load_recipe("demo", [*changes, "supervised=null", "ablations=null"]), tmp_path / "run", progress=Progress())
    printed = capsys.readouterr()
    assert f"reinforcement: {ADVICE}, after 2 steps" in printed.out + printed.err
