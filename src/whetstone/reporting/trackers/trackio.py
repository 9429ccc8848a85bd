"""Trackio: a local database, a Space on the Hugging Face hub, or a server of one's own. `trackio show` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from whetstone.errors import RecipeError
from whetstone.extras import install_command
from whetstone.reporting.trackers.protocol import TrackedRun


class Trackio:
    """Numbers and recipe as a run of Trackio.

    Args:
        project: The project there.
        space: A Space on the hub, `user/name`; null: this machine, in `TRACKIO_DIR`.
        server: A server's address, with its write token; null: none.
        group: What runs that belong together are shown as.
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
        """See `Tracker.start`."""
        import trackio

        for module in (trackio, trackio.utils, trackio.run):
            vars(module)["print"] = _unsaid  # standard output is for results, and another thread may be printing them
        self._run = trackio.init(
            project=self.project,
            name=f"{run.name}-{run.id}",  # which it goes on by
            group=self.group,
            space_id=self.space,
            server_url=self.server,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
        )
        try:
            return int(self._run._next_step) - 1  # it writes behind `log`: what is not there was lost
        except AttributeError:  # another version
            return None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """See `Tracker.finish`."""
        if summary is not None:
            self._run.log(dict(summary))
        self._run.finish()


def _unsaid(*said: object, **how: object) -> None:
    """In the place of `print`."""
