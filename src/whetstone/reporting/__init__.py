"""Reporting of a run: metrics, progress, alarms, trajectory files and the HTML report."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.reporting.alarms import (
        ALARMS as ALARMS,
        Alarm as Alarm,
        find_alarms as find_alarms,
        mismatch_limit as mismatch_limit,
        stored_alarms as stored_alarms,
    )
    from whetstone.reporting.dashboard import Dashboard as Dashboard, shows_a_dashboard as shows_a_dashboard
    from whetstone.reporting.learning_diagnostics import (
        kept_sentence as kept_sentence,
        describe_learning as describe_learning,
        learning_rows as learning_rows,
        noise_advice as noise_advice,
    )
    from whetstone.reporting.metrics import Journal as Journal
    from whetstone.reporting.progress import Progress as Progress, ProgressBar as ProgressBar
    from whetstone.reporting.report import write_report as write_report
    from whetstone.reporting.trajectories import (
        read_trajectories as read_trajectories,
        write_trajectories as write_trajectories,
    )

__getattr__, __dir__ = export_lazily(__name__)
