"""Metrics sent to MLflow are in its database, read with its own client."""

import pytest

from support.trackers import SUMMARY, evaluation, feed_of, write_run
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers import MLflow

for package in ("mlflow", "sqlalchemy", "alembic"):
    pytest.importorskip(package, reason=install_command("mlflow"))


@pytest.mark.slow
def test_metrics_parameters_and_status_are_read_back_once_each_after_a_kill(tmp_path):
    from mlflow.tracking import MlflowClient

    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", write_run(tmp_path / "demo")
    first = feed_of(folder, mlflow=MLflow(uri=uri))
    first.follow_run(folder)
    first.send_evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        first.send_row({"stage": "reinforcement", "step": step, "reward/mean": step / 10})
    first.close(None)
    sent = folder / "trackers" / "mlflow.told"
    sent.write_text("".join(sent.read_text().splitlines(keepends=True)[:-1]))  # killed before that was recorded
    write_run(folder, reinforcement=3, evaluations=[("untrained", 0.25)])
    second = feed_of(folder, mlflow=MLflow(uri=uri))
    second.follow_run(folder)
    second.send_row({"stage": "reinforcement", "step": 4, "reward/mean": 0.4})
    second.close(SUMMARY)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("whetstone")
    (run,) = client.search_runs([experiment.experiment_id])
    rewards = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "reward/mean")]
    assert rewards == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    successes = client.get_metric_history(run.info.run_id, "evaluation/success")
    assert [(metric.step, metric.value) for metric in successes] == [(0, 0.25)]
    assert run.data.params == {"seed": "3", "policy.device": "cpu", "rollout.group_size": "4"}
    assert run.info.run_name == "demo"
    assert run.info.status == "FINISHED"
    assert run.data.tags["summary/success_after"] == "0.75"
