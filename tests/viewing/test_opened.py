"""What is looked at is found, and how it is doing is said in a sentence."""

import json
import os
import time

import pytest

from tests_viewed import evaluated, made_run, row
from whetstone.errors import RunDirectoryError
from whetstone.policies import build_tiny, save_policy
from whetstone.reporting import Journal
from whetstone.viewing.opened import OpenedRun, flat, opened_runs


@pytest.fixture
def opened(tmp_path):
    def open_run(folder):
        run = OpenedRun(folder, "run", cache=tmp_path / "cache")
        run.refresh()
        return run

    return open_run


def names(*folders, cache):
    return [run.name for run in opened_runs(folders, cache=cache)]


def test_a_run_a_folder_of_runs_and_the_stages_of_one_are_found(tmp_path):
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


def test_two_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [made_run(tmp_path / place / "demo") for place in ("monday", "tuesday")]
    assert names(*runs, cache=tmp_path / "cache") == ["demo", "tuesday/demo"]


def test_no_run_is_said_with_the_nearest(tmp_path):
    made_run(tmp_path / "demo")
    with pytest.raises(RunDirectoryError, match='deom: no such folder; did you mean "demo"'):
        opened_runs([tmp_path / "deom"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match="empty: holds no run"):
        opened_runs([tmp_path / "empty"])


def test_a_run_is_running_silent_or_finished_by_what_it_writes(tmp_path, opened):
    folder = made_run(tmp_path / "run")
    assert opened(folder).progress()["state"] == "running"
    assert [opened(folder).progress()[key] for key in ("stage", "step", "steps")] == ["reinforcement", 3, 40]
    long_ago = time.time() - 3600
    for name in ("metrics.jsonl", "store/journal.jsonl"):
        os.utime(folder / name, (long_ago, long_ago))
    assert opened(folder).progress()["state"] == "silent"
    (folder / "summary.json").write_text("{}")
    assert opened(folder).progress()["state"] == "finished"


@pytest.mark.parametrize(("late", "word"), [(0.8, "learning"), (0.1, "falling"), (0.4, "flat"), (0.99, "learning")])
def test_the_verdict_follows_success(tmp_path, opened, late, word):
    folder = made_run(tmp_path / "run", steps=1, metrics=False)
    for step in range(20):
        success = (0.4 if step < 10 else late) + 0.001 * (-1) ** step
        Journal(folder).record("reinforcement", step + 1, row(step, **{"episode/success": success}))
    assert opened(folder).verdict()["word"] == word


def test_a_last_stage_that_lost_success_is_worse_however_much_was_gained_before(tmp_path, opened):
    folder = made_run(tmp_path / "run")
    rates = {"untrained": (0.0, [0.0, 0.02]), "supervised": (0.77, [0.73, 0.81]), "reinforcement": (0.66, [0.61, 0.7])}
    evaluations = {name: {"success": rate, "interval": interval} for name, (rate, interval) in rates.items()}
    (folder / "summary.json").write_text(json.dumps({"evaluations": evaluations}))
    overview = opened(folder).overview()
    assert overview["verdict"]["word"] == "worse"
    assert "reinforcement: 77 → 66 %, worse than its start" in overview["verdict"]["said"]
    assert [result["outcome"] for result in overview["results"]] == ["better", "worse"]


def test_a_few_steps_tell_nothing(tmp_path, opened):
    assert opened(made_run(tmp_path / "run")).verdict()["word"] == "early"


@pytest.mark.parametrize(("after", "word"), [([0.7, 0.9], "learned"), ([0.3, 0.6], "flat"), ([0.0, 0.1], "worse")])
def test_of_a_finished_run_held_out_tasks_decide(tmp_path, opened, after, word):
    folder = made_run(tmp_path / "run")
    ends = {"before": {"success": 0.4, "interval": [0.3, 0.5]}, "after": {"success": sum(after) / 2, "interval": after}}
    (folder / "summary.json").write_text(json.dumps(ends))
    assert opened(folder).verdict()["word"] == word


def test_evaluations_stand_in_the_order_of_training(tmp_path, opened):
    folder = made_run(tmp_path / "run")
    for name in ("reinforcement", "reinforcement-000010", "untrained", "reinforcement-000002"):
        evaluated(folder, name, 0.5, [0.4, 0.6])
    run = opened(folder)
    assert [told["name"] for told in run.evaluations()] == [
        "untrained", "reinforcement-000002", "reinforcement-000010", "reinforcement"
    ]  # fmt: skip
    assert run.curves()["reinforcement"]["evaluation/success"]["x"] == [2, 10]


def test_what_is_missing_or_damaged_is_said_and_the_rest_is_shown(tmp_path, opened):
    folder = made_run(tmp_path / "run")
    (folder / "recipe.yaml").unlink()
    (folder / "summary.json").write_text('{"before": ')
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("nonsense\n")
    told = opened(folder).overview()
    assert told["remarks"] == ["metrics.jsonl: 1 lines cannot be read and are left out", "recipe.yaml is missing"]
    assert told["recipe"] == {"": "{}"}
    assert told["progress"]["step"] == 3


def test_a_recipe_is_told_key_by_key():
    assert flat({"a": {"b": 1, "c": [1, 2]}, "d": "x", "e": None}) == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "d": "x",
        "e": "null",
    }


def test_the_tokenizer_is_that_of_the_last_checkpoint(tmp_path, opened):
    folder = made_run(tmp_path / "run")
    run = opened(folder)
    assert run.tokenizer() is None
    (folder / "checkpoints").mkdir()
    save_policy(build_tiny(["Compute 12"], hidden=8, heads=1, layers=1), folder / "checkpoints" / "step-000002")
    (folder / "checkpoints" / "step-000003").mkdir()  # half written
    assert run.tokenizer().get_vocab_size() > 0
