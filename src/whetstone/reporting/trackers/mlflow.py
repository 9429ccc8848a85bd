"""MLflow: a tracking server, or a database in a file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers.protocol import TrackedRun

_TAG = "whetstone.run"
_MARK = "whetstone/step"
"""Metric of every call, which stores the steps that the server has."""
_LONGEST = 500
"""Maximum length of a parameter's value, in characters."""
_AT_ONCE = 100
"""Maximum number of parameters in one call of MLflow."""


class MLflow:
    """MLflow tracker: metrics, and each recipe key as a parameter.

    Args:
        experiment: Name of the experiment, which is created if it does not exist.
        uri: Tracking server or database: `http://host:5000`, `sqlite:///runs/mlflow.db`; null: the value of
            `MLFLOW_TRACKING_URI`, else `mlflow.db` in the working directory.
    """

    def __init__(self, *, experiment: str = "whetstone", uri: str | None = None) -> None:
        if find_spec("mlflow") is None:
            raise RecipeError(f"mlflow is not installed: {install_command('mlflow')}")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._id = ""

    def start(self, run: TrackedRun) -> int | None:
        """Start or continue the MLflow run; return the last step that the server has. See `Tracker.start`."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        for room in ("mlflow", "alembic"):
            logging.getLogger(room).setLevel(logging.WARNING)  # a new database logs each table
        self._client = client = MlflowClient(self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known is not None else client.create_experiment(self.experiment)
        runs = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'")
        if runs:
            self._id = runs[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return max((int(metric.step) for metric in client.get_metric_history(self._id, _MARK)), default=-1)
        self._id = client.create_run(experiment, run_name=run.name, tags={_TAG: run.id}).info.run_id
        keys = [Param(key, value) for key, value in _flat(run.recipe, "")]
        for first in range(0, len(keys), _AT_ONCE):
            client.log_batch(self._id, params=keys[first : first + _AT_ONCE])
        return -1

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step to MLflow. See `Tracker.log`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = [Metric(name, value, now, step) for name, value in {**metrics, _MARK: float(step)}.items()]
        self._client.log_batch(self._id, metrics=values)

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Log the summary and end the MLflow run. See `Tracker.finish`."""
        for name, value in (summary or {}).items():
            self._client.set_tag(self._id, name, f"{value:g}")
        self._client.set_terminated(self._id, status="FINISHED" if summary is not None else "KILLED")


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Flatten nested values into (dotted key, value as text) pairs."""
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flat(below, f"{key}.{name}".lstrip("."))
    elif value not in (None, "", [], {}):
        text = value if isinstance(value, str) else json.dumps(value)
        yield key, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
