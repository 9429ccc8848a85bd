"""Scores of tasks by their learning curves: worked numbers, and the record of a run."""

import json

import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.analysis.task_scores import TaskScore, TaskScores, _curves, task_scores
from whetstone.assembly import assemble
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.record.reader import RunRecord
from whetstone.trajectory import Task


def test_groups_are_divided_into_windows_with_each_task_once():
    visits = [("a", 0.0), ("b", 1.0), ("a", 0.5), ("b", None), ("a", 1.0), ("b", 1.0)]
    assert _curves(visits, 3) == {"a": [0.0, 0.5, 1.0], "b": [1.0, None, 1.0]}
    # two groups in one window are averaged
    assert _curves([("a", 0.0), ("a", 1.0), ("b", 1.0), ("b", 0.0)], 2) == {"a": [0.5, None], "b": [None, 0.5]}


def test_best_sixth_is_selected_and_written_in_the_order_of_the_source():
    scores_of_tasks = [
        TaskScore(index, str(index), score, ()) for index, score in ((7, 0.9), (2, 0.8), (5, 0.5), (1, 0.1))
    ]
    scores = TaskScores(tuple(scores_of_tasks), dropped=0)
    assert scores.select_best(share=0.5) == [2, 7]
    assert scores.select_best() == [7]  # a sixth of four is one
    assert scores.select_best(at_least=0.5) == [2, 5, 7]
    assert scores.select_best(at_least=0.95) == []


@pytest.mark.slow
def test_run_is_scored_by_its_record_and_selected_tasks_are_trained(tmp_path):
    rows = [json.dumps({"prompt": f"{k}", "answer": k}) for k in range(8)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    recipe = ["tasks={source: jsonl, path: tasks.jsonl, held_out_fraction: 0.25}", "supervised=null", "ablations=null"]
    small = [*(change for change in SMALL if not change.startswith("supervised.")), *recipe, TEACHING]
    done = whetstone("train", "demo", *small, "reinforcement.steps=9", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # 18 groups of 6 tasks: three windows, in each of which every task is once
    command = ("tasks", "score", "run", "--output-file", "best.json", "--json")
    done = whetstone(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (len(printed["tasks"]), printed["dropped"], len(printed["chosen"])) == (6, 0, 1)
    naive = naive_curves(tmp_path / "run")
    assert {task["id"]: task["curve"] for task in printed["tasks"]} == naive
    mean = [sum(curve[k] for curve in naive.values()) / 6 for k in range(3)]
    for task in printed["tasks"]:
        squared_distance = sum((r - m) ** 2 for r, m in zip(task["curve"], mean, strict=True))
        most = sum((1 - m) ** 2 for m in mean)
        assert task["score"] == pytest.approx(1 - squared_distance / most if most else 0.0)
    assert json.loads((tmp_path / "best.json").read_text()) == printed["chosen"]
    chosen = ["with=limr", f"curriculum.path={tmp_path / 'best.json'}", "curriculum.indices=null"]
    done = whetstone("train", "demo", *chosen, *small, "--run-dir", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    repeated = RunRecord(tmp_path / "again")
    assert set(repeated.tasks.values()) == set(printed["chosen"])


def naive_curves(run):
    """Return the success rate per task in each third of the run."""
    record = RunRecord(run)
    curves = {}
    for update in sorted(record.consumed):
        for number in record.consumed[update]:
            group = record.load(number, Task("", ""))
            share = sum(t.score.success for t in group.trajectories) / len(group.trajectories)
            curves.setdefault(group.trajectories[0].task_id, []).append(share)
    return curves


def test_run_with_each_task_once_is_refused_with_the_remedy(tmp_path, monkeypatch):
    class Once:
        consumed, passed_over, tasks = {0: [0, 1]}, {}, {0: 0, 1: 1}

        def __init__(self, run_dir):
            pass

        def has_group(self, number):
            return True

        def load(self, number, task):
            return type("Group", (), {"trajectories": ()})()

    monkeypatch.setattr("whetstone.analysis.task_scores.RunRecord", Once)
    with pytest.raises(RunDirectoryError, match="2 groups of 2 tasks; a curve needs tasks that were sampled at least"):
        task_scores(tmp_path)


def test_curriculum_without_tasks_is_refused_with_the_remedy():
    for changes, message in (
        (["curriculum=task_subset"], "a list of tasks, or path: .* `whetstone tasks score RUN` writes"),
        (["curriculum={name: task_subset, indices: [1], path: x.json}"], "both a list of tasks and path are set"),
    ):
        with pytest.raises(Exception, match=message):
            assemble(load_recipe("demo", [*SMALL, *changes])).check()
