"""What is going on in a run, and what went on in it? Its files, read while it writes them, as pages in a browser."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.viewing.app import Viewer, view_application
    from whetstone.viewing.compared import comparison_in
    from whetstone.viewing.index import TrajectoryIndex
    from whetstone.viewing.opened import OpenedRun, opened_runs
    from whetstone.viewing.taught import Taught
    from whetstone.viewing.wanted import Wanted

__getattr__, __dir__ = window(__name__)

__all__ = [
    "OpenedRun",
    "Taught",
    "TrajectoryIndex",
    "Viewer",
    "Wanted",
    "comparison_in",
    "opened_runs",
    "view_application",
]
