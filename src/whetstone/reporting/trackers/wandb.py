"""Weights & Biases, on its server or offline: `trackers: {name: wandb, mode: offline}`, and `wandb sync` later."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers.protocol import TrackedRun

_EVALUATION = "evaluation/"


class WeightsAndBiases:
    """Weights & Biases tracker: metrics, recipe and summary.

    A resumed run is the same run there. In offline mode, each process has its own folder; `wandb sync --append` merges
    them.

    Args:
        project: Name of the project.
        entity: User or team; null: the one that is logged in.
        mode: `offline` writes files without network access; null: the value of `WANDB_MODE`, else `online`.
        group: Group of runs in the user interface.
        tags: Tags of the run.
    """

    def __init__(
        self,
        *,
        project: str = "whetstone",
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        if find_spec("wandb") is None:
            raise RecipeError(f"wandb is not installed: {install_command('wandb')}")
        self.project, self.entity, self.mode, self.group, self.tags = project, entity, mode, group, tags
        self._run: Any = None
        self._step = 0

    def start(self, run: TrackedRun) -> int | None:
        """Start or continue the W&B run. See `Tracker.start`."""
        import wandb

        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            group=self.group,
            tags=self.tags,
            id=run.id,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.recipe),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),  # the terminal is the run's
        )
        self._run.define_metric(f"{_EVALUATION}step")
        self._run.define_metric(f"{_EVALUATION}*", step_metric=f"{_EVALUATION}step")
        if not self._run.resumed:
            return None
        self._step = self._run.starting_step
        return int(self._run.starting_step) - 1

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step to W&B. See `Tracker.log`."""
        evaluated = any(name.startswith(_EVALUATION) for name in metrics)
        # a background evaluation ends steps later, and wandb rejects a step below the last one
        self._step = max(self._step, step)
        self._run.log({**metrics, **({f"{_EVALUATION}step": step} if evaluated else {})}, step=self._step)

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Store the summary and finish the W&B run. See `Tracker.finish`."""
        if summary is not None:
            self._run.summary.update(dict(summary))
        self._run.finish(exit_code=0 if summary is not None else 1)
