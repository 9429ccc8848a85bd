"""MLflow: a tracking server, or a database in a file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from whetstone.errors import RecipeError
from whetstone.extras import install_command
from whetstone.reporting.trackers.protocol import TrackedRun

_TAG = "whetstone.run"
_MARK = "whetstone/step"
"""In every call, so that the server can be asked which steps it holds."""
_LONGEST = 500
"""Letters of a parameter's value."""
_AT_ONCE = 100
"""Parameters MLflow takes in one call."""


class MLflow:
    """Numbers as metrics, each key of the recipe as a parameter, of a run of MLflow.

    Args:
        experiment: The experiment there, which is made where there is none.
        uri: The tracking server or database: `http://host:5000`, `sqlite:///runs/mlflow.db`; null: as
            `MLFLOW_TRACKING_URI` says, else `mlflow.db` in the working directory.
    """

    def __init__(self, *, experiment: str = "whetstone", uri: str | None = None) -> None:
        if find_spec("mlflow") is None:
            raise RecipeError(f"mlflow is not installed: {install_command('mlflow')}")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._id = ""

    def start(self, run: TrackedRun) -> int | None:
        """See `Tracker.start`."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        for room in ("mlflow", "alembic"):
            logging.getLogger(room).setLevel(logging.WARNING)  # a new database is told of table by table
        self._client = client = MlflowClient(self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known is not None else client.create_experiment(self.experiment)
        found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'")
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return max((int(metric.step) for metric in client.get_metric_history(self._id, _MARK)), default=-1)
        self._id = client.create_run(experiment, run_name=run.name, tags={_TAG: run.id}).info.run_id
        keys = [Param(key, value) for key, value in _flat(run.recipe, "")]
        for first in range(0, len(keys), _AT_ONCE):
            client.log_batch(self._id, params=keys[first : first + _AT_ONCE])
        return -1

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        told = [Metric(name, value, now, step) for name, value in {**metrics, _MARK: float(step)}.items()]
        self._client.log_batch(self._id, metrics=told)

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """See `Tracker.finish`."""
        for name, value in (summary or {}).items():
            self._client.set_tag(self._id, name, f"{value:g}")
        self._client.set_terminated(self._id, status="FINISHED" if summary is not None else "KILLED")


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """(dotted key, value as text)"""
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flat(below, f"{key}.{name}".lstrip("."))
    elif value not in (None, "", [], {}):
        text = value if isinstance(value, str) else json.dumps(value)
        yield key, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
