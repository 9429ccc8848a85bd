"""How good is an agent, and how sure is that?"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.evaluation.comparing import paired
    from whetstone.evaluation.harness import harness_json
    from whetstone.evaluation.intervals import Rate, clustered, wilson
    from whetstone.evaluation.logs import inspect_json, outcomes_of
    from whetstone.evaluation.measures import (
        Calibration,
        calibration,
        majority,
        pass_at_k,
        pass_hat_k,
        tool_productivity,
    )
    from whetstone.evaluation.success import MOST_INVALID, Evaluation, effective_samples, evaluation_of, rate

__getattr__, __dir__ = window(__name__)

__all__ = [
    "MOST_INVALID",
    "Calibration",
    "Evaluation",
    "Rate",
    "calibration",
    "clustered",
    "effective_samples",
    "evaluation_of",
    "harness_json",
    "inspect_json",
    "majority",
    "outcomes_of",
    "paired",
    "pass_at_k",
    "pass_hat_k",
    "rate",
    "tool_productivity",
    "wilson",
]
