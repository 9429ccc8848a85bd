"""Import and export of logs of Inspect and of the evaluation harness."""

import importlib.util
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from support.rewards import episode
from whetstone.cli.compare_logs import compare_logs
from whetstone.errors import TaskError
from whetstone.evaluation.eval_logs import inspect_json, read_task_scores
from whetstone.evaluation.results import summarize_episodes
from whetstone.trajectory import Group, Score, Task

PROTOCOL = {"agent": "runs/a", "seed": 0, "whetstone": "0.1.0", "samples": 2}


def groups():
    def played(task, name, value):
        return replace(
            episode("It is 2."), id=name, task_id=task, score=Score(value, {"correct": value}, success=value > 0)
        )

    return [
        Group(task=Task("a", "1+1?", {"answer": 2}), trajectories=(played("a", "a0", 1.0), played("a", "a1", 0.0))),
        Group(task=Task("b", "2+2?", {"answer": 4}), trajectories=(played("b", "b0", 0.0), played("b", "b1", 0.0))),
    ]


def written(folder):
    file = folder / "ours.json"
    file.write_text(json.dumps(inspect_json("sums", summarize_episodes(groups(), temperature=1.0), PROTOCOL, groups())))
    return file


def test_written_logs_are_read_per_task(tmp_path):
    assert read_task_scores(written(tmp_path)) == {"a": 0.5, "b": 0.0}


@pytest.mark.skipif(importlib.util.find_spec("inspect_ai") is None, reason="no Inspect here: pip install inspect-ai")
@pytest.mark.slow
def test_inspect_reads_written_logs(tmp_path):
    from inspect_ai.log import read_eval_log

    log = read_eval_log(str(written(tmp_path)))
    assert (log.status, log.eval.task, log.results.scores[0].metrics["accuracy"].value) == ("success", "sums", 0.25)
    assert [(one.id, one.epoch, one.scores["success"].value) for one in log.samples][:2] == [
        ("a", 1, 1.0),
        ("a", 2, 0.0),
    ]
    assert log.samples[0].messages[-1].text == "It is 2."


def test_logs_of_inspect_and_samples_of_the_harness_are_read(tmp_path):
    inspect = tmp_path / "log.json"
    samples = [{"id": k, "epoch": 1, "scores": {"match": {"value": letter}}} for k, letter in enumerate("CIP")]
    inspect.write_text(json.dumps({"version": 2, "eval": {}, "samples": samples}))
    assert read_task_scores(inspect) == {"0": 1.0, "1": 0.0, "2": 0.5}
    harness = tmp_path / "samples_x.jsonl"
    rows = [{"doc_id": k, "metrics": ["acc"], "acc": value} for k, value in enumerate((1.0, 0.0))]
    harness.write_text("\n".join(map(json.dumps, rows)))
    assert read_task_scores(harness) == {"0": 1.0, "1": 0.0}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{"results": {}}', "--log_samples"),
        ("x.json", "[1]", "neither an Inspect log"),
        ("x.json", '{"eval": {}, "samples": []}', "no sample has a score"),
        ("x.jsonl", "{", "not JSON"),
        ("x.eval", "", "--to json"),
    ],
)
def test_invalid_logs_are_refused_in_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        read_task_scores(tmp_path / name)
    with pytest.raises(TaskError, match="no such log"):
        read_task_scores(tmp_path / "none.json")


def test_logs_are_compared_over_common_tasks(tmp_path):
    for name, values in (("one", (1, 1, 1, 0)), ("other", (0, 1, 0, 0))):
        rows = [{"doc_id": k, "acc": value} for k, value in enumerate(values)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [str(tmp_path / "one.jsonl"), str(tmp_path / "other.jsonl")]
    result = CliRunner().invoke(compare_logs, [*files, "--json"])
    compared = json.loads(result.output)
    assert [row["success"] for row in compared["logs"]] == [0.75, 0.25]
    assert compared["pairs"][0]["difference"] == 0.5
