import json
import math

from whetstone.reporting import Journal


def test_steps_are_lines_of_strict_json(tmp_path):
    journal = Journal(tmp_path)
    journal.record("supervised", 1, {"loss": 0.5, "bad": math.nan})
    assert json.loads(journal.path.read_text()) == {"stage": "supervised", "step": 1, "loss": 0.5, "bad": None}


def test_rewinding_forgets_what_the_checkpoint_does_not_know_and_a_torn_line(tmp_path):
    journal = Journal(tmp_path)
    for stage, step in [("supervised", 1), ("supervised", 2), ("reinforcement", 1), ("reinforcement", 2)]:
        journal.record(stage, step, {})
    with open(journal.path, "a") as file:
        file.write('{"stage": "reinf')
    journal.rewind({"supervised": 2, "reinforcement": 1})
    assert [(row["stage"], row["step"]) for row in journal.read()] == [
        ("supervised", 1),
        ("supervised", 2),
        ("reinforcement", 1),
    ]


def test_a_run_without_metrics_has_none(tmp_path):
    assert Journal(tmp_path).read() == []
