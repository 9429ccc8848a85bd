"""The conformance suite detects each silent failure that is planted in a trainer, and finds none in an honest one."""

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import format_page, judge, read_not_claimed, run_suite
from conformance_suite.checks import CHECKS, Outcome, Record
from conformance_suite.minimal_adapter import Trainer
from conformance_suite.scenario import Scenario, read_rows
from conformance_suite.world import build_world

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/what-trainers-do-silently.md"
STORED = ROOT / "benchmarks/results/raw/conformance.json"
BY_NAME = {check.name: check for check in CHECKS}


class Killed(Exception):
    """The end of a run between two updates."""


class Player:
    """Plays scenarios with the minimal trainer in this process."""

    def __init__(self, folder, plant=""):
        self.folder, self.plant, self.played = folder, plant, {}

    def __call__(self, name, *, kill_after=0, **fields):
        if name not in self.played:
            out = self.folder / f"{name}-{self.plant}"
            out.mkdir()
            scenario = Scenario(str(self.folder / "world"), str(out), **fields)
            resumed_at = 0.0
            if kill_after:
                with pytest.raises(Killed):
                    self.train(scenario, kill_after)
                resumed_at = time.time()
                self.train(replace(scenario, resume=True))
            elif scenario.fault == "hang":
                self.hang(scenario)
            else:
                self.train(scenario)
            self.played[name] = Record(scenario, Outcome(True), resumed_at)
        return self.played[name]

    def train(self, scenario, kill_after=0):
        """Train, and raise `Killed` after some updates."""
        trainer = Trainer(scenario, self.plant)
        save = trainer.save

        def save_and_stop():
            save()
            if trainer.done == kill_after:
                raise Killed

        trainer.save = save_and_stop
        trainer.train()

    def hang(self, scenario):
        """Play a tool that ends at its deadline, or a run that waits for it."""
        trainer = Trainer(scenario, self.plant)
        look_up = trainer.recorder.look_up

        def bounded(key):
            if trainer.recorder.calls == 1:
                trainer.recorder.calls += 1
                trainer.recorder.write("faults", {"kind": "hang"})
                if self.plant:
                    raise Killed
                return "error: it took too long"
            return look_up(key)

        trainer.recorder.look_up = bounded
        try:
            trainer.train()
        except Killed:
            assert self.plant


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("conformance")
    build_world(path / "world")
    return path


@pytest.fixture(scope="module")
def honest(folder):
    return Player(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_honest_trainer_passes(honest, name):
    row = judge(BY_NAME[name], honest, {})
    assert row["result"] == "passes", row


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_planted_failure_is_detected(folder, name):
    row = judge(BY_NAME[name], Player(folder, name), {})
    assert row["result"] == "fails", row


def test_failure_without_a_claim_is_not_applicable(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text('import absent\nNOT_CLAIMED = {"c": "It has no deadline."}\n')
    assert read_not_claimed(adapter) == {"c": "It has no deadline."}


def test_trainer_that_is_not_installed_is_reported_with_the_reason(tmp_path):
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "chats.jsonl").touch()
    adapter = tmp_path / "absent.py"
    reason = "absent: is not installed; pip install absent"
    adapter.write_text(f"import sys\nprint({reason!r}, file=sys.stderr)\nsys.exit(3)")
    result = run_suite(adapter, sys.executable, tmp_path, ["hung_tool_ends"])
    (row,) = result["rows"]
    assert (row["result"], row["measured"]) == ("not applicable", reason)
    assert "| `hung_tool_ends` | not applicable |" in format_page({"trainers": [result], "machine": "a laptop"})


def test_torn_last_line_of_a_killed_run_is_ignored(tmp_path):
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "updates.jsonl").write_text('{"done": 1}\n{"do')
    assert read_rows(tmp_path, "updates") == [{"done": 1}]


def test_the_page_shows_the_stored_results_and_the_threads_of_each_check():
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if "](https://github.com/" in line]
    stored = {each["trainer"]["name"]: each for each in json.loads(STORED.read_text())["trainers"]}
    assert len(rows) == len(CHECKS)
    for check, (_, threads, *cells) in zip(CHECKS, rows, strict=True):
        assert tuple(re.findall(r"\]\((.*?)\)", threads)) == check.threads
        for name, cell in zip(("Whetstone", "TRL"), cells, strict=True):
            (row,) = [row for row in stored[name]["rows"] if row["check"] == check.name]
            assert cell.strip(" *|") == row["result"], check.name
    for name, each in stored.items():
        assert f"{name} {each['trainer']['version']}" in PAGE.read_text()
