"""Trackio tracker: a local database, a Space on the Hugging Face hub, or a self-hosted server (`trackio show`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers.protocol import TrackedRun


class Trackio:
    """Trackio tracker: metrics and recipe.

    Args:
        project: Name of the project.
        space: A Space on the hub, `user/name`; null: this machine, in `TRACKIO_DIR`.
        server: Address of a server, with its write token; null: none.
        group: Group of runs in the user interface.
    """

    def __init__(
        self,
        *,
        project: str = "whetstone",
        space: str | None = None,
        server: str | None = None,
        group: str | None = None,
    ) -> None:
        if find_spec("trackio") is None:
            raise RecipeError(f"trackio is not installed: {install_command('trackio')}")
        self.project, self.space, self.server, self.group = project, space, server, group
        self._run: Any = None

    def start(self, run: TrackedRun) -> int | None:
        """Start or continue the Trackio run. See `Tracker.start`."""
        import trackio

        for module in (trackio, trackio.utils, trackio.run):
            vars(module)["print"] = (
                _discard_print  # standard output is for results, and another thread may be printing them
            )
        self._run = trackio.init(
            project=self.project,
            name=f"{run.name}-{run.id}",  # identifies the run at a resume
            group=self.group,
            space_id=self.space,
            server_url=self.server,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
        )
        try:
            return int(self._run._next_step) - 1  # it writes asynchronously: missing steps were lost
        except AttributeError:  # another version
            return None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step to Trackio. See `Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Finish the Trackio run. See `Tracker.finish`."""
        if summary is not None:
            self._run.log(dict(summary))
        self._run.finish()


def _discard_print(*values: object, **how: object) -> None:
    """Discard the arguments; replaces `print`."""
