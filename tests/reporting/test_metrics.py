import json
import math

from whetstone.reporting import Journal


def test_steps_are_lines_of_strict_json(tmp_path):
    journal = Journal(tmp_path)
    journal.record("supervised", 1, {"loss": 0.5, "bad": math.nan})
    assert json.loads(journal.path.read_text()) == {"stage": "supervised", "step": 1, "loss": 0.5, "bad": None}


def test_rewinding_drops_steps_after_the_checkpoint_and_a_partial_line(tmp_path):
    journal = Journal(tmp_path)
    for stage, step in [("supervised", 1), ("supervised", 2), ("reinforcement", 1), ("reinforcement", 2)]:
        journal.record(stage, step, {})
    with open(journal.path, "a") as file:
        file.write('{"stage": "reinf')
    journal.truncate_rows({"supervised": 2, "reinforcement": 1})
    assert [(row["stage"], row["step"]) for row in journal.read()] == [
        ("supervised", 1),
        ("supervised", 2),
        ("reinforcement", 1),
    ]


def test_run_without_metrics_has_none(tmp_path):
    assert Journal(tmp_path).read() == []


def test_damaged_line_is_skipped_with_a_warning_and_a_copy(tmp_path):
    warned = []
    journal = Journal(tmp_path, warn=warned.append)
    for step in range(1, 23):
        journal.record("reinforcement", step, {"reward/mean": step / 2})
    lines = journal.path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"stage": "reinforcement", "step": 4, "reward/mean": 2.\n'
    lines[9] = b"\xff\xfe\n"
    lines[15] = b"[" * 5000 + b"\n"
    lines[16] = b'{"stage": "reinforcement", "step": "17"}\n'
    lines[17] = b'{"stage": "reinforcement", "step": 18, "reward/mean": [1]}\n'
    damaged = b"".join(lines) + b'{"stage": "rein'  # truncated by a kill, which is no damage
    journal.path.write_bytes(damaged)
    steps = [step for step in range(1, 23) if step not in (4, 10, 16, 17, 18)]
    assert [row["step"] for row in journal.read()] == steps
    assert [line.partition(": the line is damaged")[0].rpartition(":")[2] for line in warned] == [
        "4",
        "10",
        "16",
        "17",
        "18",
    ]
    assert journal.path.read_bytes() == damaged  # reading changes nothing
    journal.truncate_rows({"reinforcement": 20})
    assert [row["step"] for row in journal.read()] == [step for step in steps if step <= 20]
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged
    assert "the file is kept as metrics.jsonl.damaged" in warned[-1]
    journal.path.write_bytes(b"nonsense\n")
    journal.truncate_rows({"reinforcement": 20})
    assert (tmp_path / "metrics.jsonl.damaged-2").read_bytes() == b"nonsense\n"
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged


def test_damaged_line_is_logged_without_a_warning_callback(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('5\n{"stage": "a", "step": 1}\n')
    assert len(Journal(tmp_path).read()) == 1
    assert "metrics.jsonl:1: the line is damaged and left out: a JSON object is expected, got int" in caplog.text
