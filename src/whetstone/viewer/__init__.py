"""Web viewer of runs: reads the files of a run while it writes them, and serves pages about it."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.viewer.viewer_app import Viewer as Viewer, view_application as view_application
    from whetstone.viewer.run_comparison import find_comparison as find_comparison
    from whetstone.viewer.trajectory_index import TrajectoryIndex as TrajectoryIndex
    from whetstone.viewer.runs import ViewedRun as ViewedRun, open_runs as open_runs
    from whetstone.viewer.supervised_tokens import SupervisedTokens as SupervisedTokens
    from whetstone.viewer.trajectory_query import TrajectoryQuery as TrajectoryQuery

__getattr__, __dir__ = export_lazily(__name__)
