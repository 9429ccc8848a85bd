"""What can be asked of a finished run? Replays, explanations and comparisons."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.analysis.appendix import write_appendix
    from whetstone.analysis.comparison import check_contenders, compare, contenders_of, learning_curve
    from whetstone.analysis.first_difference import FirstDifference, RunComparison, compare_runs
    from whetstone.analysis.offline import Advice, Look, advice, looks_of
    from whetstone.analysis.replay import Replay, ReplayCheck
    from whetstone.analysis.shown_run import ShownRun
    from whetstone.analysis.slowness import Slowness, Waits, slowness_of, waits_of
    from whetstone.analysis.why import Explainer, Explanation

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Advice",
    "Explainer",
    "Explanation",
    "FirstDifference",
    "Look",
    "Replay",
    "ReplayCheck",
    "RunComparison",
    "ShownRun",
    "Slowness",
    "Waits",
    "advice",
    "check_contenders",
    "compare",
    "compare_runs",
    "contenders_of",
    "learning_curve",
    "looks_of",
    "slowness_of",
    "waits_of",
    "write_appendix",
]
