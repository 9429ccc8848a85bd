"""Runs are found, and their state is one sentence."""

import json
import os
import time

import pytest

from support.viewed_runs import evaluated, made_run, row
from whetstone.errors import RunDirectoryError
from whetstone.policies import build_tiny, save_policy
from whetstone.reporting import Journal
from whetstone.viewer.runs import ViewedRun, flatten_values, open_runs


@pytest.fixture
def open_viewed(tmp_path):
    def open_run(folder):
        run = ViewedRun(folder, "run", cache=tmp_path / "cache")
        run.refresh()
        return run

    return open_run


def names(*folders, cache):
    return [run.name for run in open_runs(folders, cache=cache)]


def test_a_run_a_folder_of_runs_and_stages_are_found(tmp_path):
    one, other = made_run(tmp_path / "runs" / "one"), made_run(tmp_path / "runs" / "other")
    chain = tmp_path / "chain"
    for stage in ("1-supervised", "2-reinforcement"):
        made_run(chain / "stages" / stage)
    (chain / "recipe.yaml").write_text("title: a chain\n")
    cache = tmp_path / "cache"
    assert names(one, cache=cache) == ["one"]
    assert names(tmp_path / "runs", cache=cache) == ["one", "other"]
    assert names(other, one, other, cache=cache) == ["other", "one"]
    assert names(chain, cache=cache) == ["1-supervised", "2-reinforcement"]


def test_runs_of_one_name_are_distinguished_by_their_folders(tmp_path):
    runs = [made_run(tmp_path / place / "demo") for place in ("monday", "tuesday")]
    assert names(*runs, cache=tmp_path / "cache") == ["demo", "tuesday/demo"]


def test_missing_run_is_reported_with_the_nearest(tmp_path):
    made_run(tmp_path / "demo")
    with pytest.raises(RunDirectoryError, match='deom: no such folder; did you mean "demo"'):
        open_runs([tmp_path / "deom"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match="empty: holds no run"):
        open_runs([tmp_path / "empty"])


def test_run_is_running_silent_or_finished_by_its_files(tmp_path, open_viewed):
    folder = made_run(tmp_path / "run")
    assert open_viewed(folder).describe_progress()["state"] == "running"
    assert [open_viewed(folder).describe_progress()[key] for key in ("stage", "step", "steps")] == [
        "reinforcement",
        3,
        40,
    ]
    long_ago = time.time() - 3600
    for name in ("metrics.jsonl", "store/journal.jsonl"):
        os.utime(folder / name, (long_ago, long_ago))
    assert open_viewed(folder).describe_progress()["state"] == "silent"
    (folder / "summary.json").write_text("{}")
    assert open_viewed(folder).describe_progress()["state"] == "finished"


@pytest.mark.parametrize(("late", "word"), [(0.8, "learning"), (0.1, "falling"), (0.4, "flat"), (0.99, "learning")])
def test_the_verdict_follows_success(tmp_path, open_viewed, late, word):
    folder = made_run(tmp_path / "run", steps=1, metrics=False)
    for step in range(20):
        success = (0.4 if step < 10 else late) + 0.001 * (-1) ** step
        Journal(folder).record("reinforcement", step + 1, row(step, **{"episode/success": success}))
    assert open_viewed(folder).assess_health()["word"] == word


def test_last_stage_that_lost_success_is_worse_despite_earlier_gains(tmp_path, open_viewed):
    folder = made_run(tmp_path / "run")
    rates = {"untrained": (0.0, [0.0, 0.02]), "supervised": (0.77, [0.73, 0.81]), "reinforcement": (0.66, [0.61, 0.7])}
    evaluations = {name: {"success": rate, "interval": interval} for name, (rate, interval) in rates.items()}
    (folder / "summary.json").write_text(json.dumps({"evaluations": evaluations}))
    overview = open_viewed(folder).describe_run()
    assert overview["verdict"]["word"] == "worse"
    assert "reinforcement: 77 → 66 %, worse than its start" in overview["verdict"]["said"]
    assert [result["outcome"] for result in overview["results"]] == ["better", "worse"]


def test_few_steps_have_no_verdict(tmp_path, open_viewed):
    assert open_viewed(made_run(tmp_path / "run")).assess_health()["word"] == "early"


@pytest.mark.parametrize(("after", "word"), [([0.7, 0.9], "learned"), ([0.3, 0.6], "flat"), ([0.0, 0.1], "worse")])
def test_held_out_tasks_decide_the_verdict_of_a_finished_run(tmp_path, open_viewed, after, word):
    folder = made_run(tmp_path / "run")
    ends = {"before": {"success": 0.4, "interval": [0.3, 0.5]}, "after": {"success": sum(after) / 2, "interval": after}}
    (folder / "summary.json").write_text(json.dumps(ends))
    assert open_viewed(folder).assess_health()["word"] == word


def test_evaluations_are_in_the_order_of_training(tmp_path, open_viewed):
    folder = made_run(tmp_path / "run")
    for name in ("reinforcement", "reinforcement-000010", "untrained", "reinforcement-000002"):
        evaluated(folder, name, 0.5, [0.4, 0.6])
    run = open_viewed(folder)
    assert [evaluation["name"] for evaluation in run.read_evaluations()] == [
        "untrained", "reinforcement-000002", "reinforcement-000010", "reinforcement"
    ]  # fmt: skip
    assert run.build_curves()["reinforcement"]["evaluation/success"]["x"] == [2, 10]


def test_missing_or_damaged_files_are_reported_and_the_rest_is_shown(tmp_path, open_viewed):
    folder = made_run(tmp_path / "run")
    (folder / "recipe.yaml").unlink()
    (folder / "summary.json").write_text('{"before": ')
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("nonsense\n")
    overview = open_viewed(folder).describe_run()
    assert overview["remarks"] == ["metrics.jsonl: 1 lines cannot be read and are skipped", "recipe.yaml is missing"]
    assert overview["recipe"] == {"": "{}"}
    assert overview["progress"]["step"] == 3


def test_recipe_is_shown_key_by_key():
    assert flatten_values({"a": {"b": 1, "c": [1, 2]}, "d": "x", "e": None}) == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "d": "x",
        "e": "null",
    }


def test_tokenizer_is_that_of_the_last_checkpoint(tmp_path, open_viewed):
    folder = made_run(tmp_path / "run")
    run = open_viewed(folder)
    assert run.load_tokenizer() is None
    (folder / "checkpoints").mkdir()
    save_policy(build_tiny(["Compute 12"], hidden=8, heads=1, layers=1), folder / "checkpoints" / "step-000002")
    (folder / "checkpoints" / "step-000003").mkdir()  # partially written
    assert run.load_tokenizer().get_vocab_size() > 0
