"""Analysis of runs: replays, explanations and comparisons."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.analysis.appendix import write_appendix as write_appendix
    from whetstone.analysis.component_options import list_default_options as list_default_options
    from whetstone.analysis.comparison import (
        check_contenders as check_contenders,
        compare as compare,
        build_contenders as build_contenders,
        learning_curve as learning_curve,
    )
    from whetstone.analysis.first_difference import (
        FirstDifference as FirstDifference,
        RunComparison as RunComparison,
        compare_runs as compare_runs,
    )
    from whetstone.analysis.offline_advice import (
        Advice as Advice,
        HeldOutEvaluation as HeldOutEvaluation,
        find_advice as find_advice,
        held_out_evaluations as held_out_evaluations,
    )
    from whetstone.analysis.replay_check import RunReplay as RunReplay, ReplayCheck as ReplayCheck
    from whetstone.analysis.run_text import RunText as RunText
    from whetstone.analysis.bottlenecks import (
        Bottleneck as Bottleneck,
        WaitStatistics as WaitStatistics,
        find_bottleneck as find_bottleneck,
        measure_waits as measure_waits,
    )
    from whetstone.analysis.explain import Explainer as Explainer, Explanation as Explanation

__getattr__, __dir__ = export_lazily(__name__)
