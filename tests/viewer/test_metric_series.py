"""Curves are the metrics on disk, in any state of the file."""

from whetstone.evaluation.intervals import wilson_interval
from whetstone.reporting import Journal
from whetstone.viewer.metric_series import MetricRows, build_curves


def test_appended_rows_are_read_and_partial_lines_wait(tmp_path):
    metrics = MetricRows(tmp_path)
    metrics.refresh()
    assert metrics.rows == []
    Journal(tmp_path).record("supervised", 1, {"loss/total": 2.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "supervised", "step": 2, "lo')
    metrics.refresh()
    assert [row["step"] for row in metrics.rows] == [1]
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('ss": 1.0}\n')
    metrics.refresh()
    assert [row["loss/total"] for row in metrics.rows] == [2.0, 1.0]


def test_run_that_returned_to_its_checkpoint_is_read_again(tmp_path):
    journal, metrics = Journal(tmp_path), MetricRows(tmp_path)
    for step in range(1, 6):
        journal.record("reinforcement", step, {"loss/total": float(step)})
    metrics.refresh()
    journal.truncate_rows({"reinforcement": 2})
    journal.record("reinforcement", 3, {"loss/total": -1.0})
    metrics.refresh()
    assert [row["loss/total"] for row in metrics.rows] == [1.0, 2.0, -1.0]


def test_damaged_lines_are_counted_and_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'nonsense\n[1]\n{"stage": "a"}\n{"stage": "a", "step": 1}\n\xff\n')
    metrics = MetricRows(tmp_path)
    metrics.refresh()
    assert (len(metrics.rows), metrics.damaged, metrics.list_stages()) == (1, 4, ["a"])


def test_success_has_the_interval_of_its_episodes():
    row = {"step": 1, "episode/success": 0.75, "cost_per_step/episodes": 10.0, "episode/invalid": 2.0}
    curve = build_curves([row])["episode/success"]
    assert (curve.low[0], curve.high[0]) == wilson_interval(
        6, 8
    )  # 10 episodes, 2 without a score, three quarters of 8 solved


def test_long_curve_is_reduced_to_means_of_neighbors():
    rows = [{"step": step, "loss/total": float(step)} for step in range(1, 11)]
    curve = build_curves(rows, max_points=5)["loss/total"]
    assert (curve.x, curve.y) == ([1.5, 3.5, 5.5, 7.5, 9.5], [1.5, 3.5, 5.5, 7.5, 9.5])


def test_values_that_are_not_finite_numbers_are_no_points():
    rows = [{"step": 1, "a": None, "b": True, "c": "x"}, {"step": 2, "a": float("nan"), "c": 1}]
    assert {key: curve.x for key, curve in build_curves(rows).items()} == {"c": [2]}
