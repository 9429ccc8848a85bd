"""What a run leaves behind for people: metrics, progress, trajectories on disk, a report."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.reporting.alarms import ALARMS, Alarm, find_alarms, mismatch_limit, stored_alarms
    from whetstone.reporting.dashboard import Dashboard, shows_a_dashboard
    from whetstone.reporting.learning import learned_from, learning_rows
    from whetstone.reporting.metrics import Journal
    from whetstone.reporting.progress import Progress, ProgressBar
    from whetstone.reporting.report import write_report
    from whetstone.reporting.trajectories import read_trajectories, write_trajectories

__getattr__, __dir__ = window(__name__)

__all__ = [
    "ALARMS",
    "Alarm",
    "Dashboard",
    "Journal",
    "Progress",
    "ProgressBar",
    "find_alarms",
    "learned_from",
    "learning_rows",
    "mismatch_limit",
    "read_trajectories",
    "shows_a_dashboard",
    "stored_alarms",
    "write_report",
    "write_trajectories",
]
