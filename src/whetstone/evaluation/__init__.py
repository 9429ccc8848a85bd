"""Evaluation: success rates with confidence intervals, significance tests, and logs of other tools."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.evaluation.significance import compare_pairs as compare_pairs
    from whetstone.evaluation.lm_eval import harness_json as harness_json
    from whetstone.evaluation.intervals import (
        Rate as Rate,
        clustered_interval as clustered_interval,
        wilson_interval as wilson_interval,
    )
    from whetstone.evaluation.difficulty import (
        DifficultyProbe as DifficultyProbe,
        TaskDifficulty as TaskDifficulty,
        plan_greedily as plan_greedily,
    )
    from whetstone.evaluation.task_exploration import TaskExplorer as TaskExplorer
    from whetstone.evaluation.eval_logs import inspect_json as inspect_json, read_task_scores as read_task_scores
    from whetstone.evaluation.evaluation_metrics import (
        Calibration as Calibration,
        compute_calibration as compute_calibration,
        majority_answer as majority_answer,
        compute_pass_at_k as compute_pass_at_k,
        pass_hat_k as pass_hat_k,
        success_by_step as success_by_step,
        tool_productivity as tool_productivity,
    )
    from whetstone.evaluation.results import (
        MOST_INVALID as MOST_INVALID,
        Evaluation as Evaluation,
        MemberResult as MemberResult,
        effective_samples as effective_samples,
        summarize_episodes as summarize_episodes,
        success_rate as success_rate,
    )

__getattr__, __dir__ = export_lazily(__name__)
