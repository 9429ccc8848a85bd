"""Which tasks a run learned from, by the card's numbers and by a run's record."""

import json

import pytest

from tests_cli import whetstone
from tests_small import SMALL, TEACHING
from whetstone.analysis.task_scores import TaskScore, TaskScores, _curves, task_scores
from whetstone.assembly import assemble
from whetstone.errors import RunDirectoryError
from whetstone.recipe import load_recipe
from whetstone.record.reader import RunRecord
from whetstone.trajectory import Task


def test_groups_in_their_order_become_windows_in_which_each_task_of_a_round_is_once():
    visits = [("a", 0.0), ("b", 1.0), ("a", 0.5), ("b", None), ("a", 1.0), ("b", 1.0)]
    assert _curves(visits, 3) == {"a": [0.0, 0.5, 1.0], "b": [1.0, None, 1.0]}
    # two of one window are averaged
    assert _curves([("a", 0.0), ("a", 1.0), ("b", 1.0), ("b", 0.0)], 2) == {"a": [0.5, None], "b": [None, 0.5]}


def test_a_sixth_is_chosen_the_best_first_and_written_in_the_order_of_the_source():
    made = [TaskScore(index, str(index), score, ()) for index, score in ((7, 0.9), (2, 0.8), (5, 0.5), (1, 0.1))]
    scores = TaskScores(tuple(made), dropped=0)
    assert scores.best(share=0.5) == [2, 7]
    assert scores.best() == [7]  # a sixth of four is one
    assert scores.best(at_least=0.5) == [2, 5, 7]
    assert scores.best(at_least=0.95) == []


@pytest.mark.slow
def test_a_run_is_scored_by_its_record_and_what_is_chosen_is_trained_on(tmp_path):
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
    said = json.loads(done.stdout)
    assert (len(said["tasks"]), said["dropped"], len(said["chosen"])) == (6, 0, 1)
    naive = naively(tmp_path / "run")
    assert {task["id"]: task["curve"] for task in said["tasks"]} == naive
    mean = [sum(curve[k] for curve in naive.values()) / 6 for k in range(3)]
    for task in said["tasks"]:
        apart = sum((r - m) ** 2 for r, m in zip(task["curve"], mean, strict=True))
        most = sum((1 - m) ** 2 for m in mean)
        assert task["score"] == pytest.approx(1 - apart / most if most else 0.0)
    assert json.loads((tmp_path / "best.json").read_text()) == said["chosen"]
    chosen = ["with=limr", f"curriculum.path={tmp_path / 'best.json'}", "curriculum.indices=null"]
    done = whetstone("train", "demo", *chosen, *small, "--run-dir", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = RunRecord(tmp_path / "again")
    assert set(again.tasks.values()) == set(said["chosen"])


def naively(run):
    """By task, its share of successes in each third of the run."""
    record = RunRecord(run)
    found = {}
    for update in sorted(record.consumed):
        for number in record.consumed[update]:
            group = record.load(number, Task("", ""))
            share = sum(t.score.success for t in group.trajectories) / len(group.trajectories)
            found.setdefault(group.trajectories[0].task_id, []).append(share)
    return found


def test_a_run_that_saw_each_task_once_is_told_what_would_help(tmp_path, monkeypatch):
    class Once:
        consumed, passed_over, tasks = {0: [0, 1]}, {}, {0: 0, 1: 1}

        def __init__(self, run_dir):
            pass

        def holds(self, number):
            return True

        def load(self, number, task):
            return type("Group", (), {"trajectories": ()})()

    monkeypatch.setattr("whetstone.analysis.task_scores.RunRecord", Once)
    with pytest.raises(RunDirectoryError, match="2 groups of 2 tasks: a curve needs tasks that were sampled at least"):
        task_scores(tmp_path)


def test_a_curriculum_that_names_no_task_says_how_to_find_some():
    for changes, said in (
        (["curriculum=task_subset"], "a list of tasks, or path: .* `whetstone tasks score RUN` writes"),
        (["curriculum={name: task_subset, indices: [1], path: x.json}"], "both a list of tasks and path are set"),
    ):
        with pytest.raises(Exception, match=said):
            assemble(load_recipe("demo", [*SMALL, *changes])).check()
