"""How good is an agent, and how sure is that?"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.evaluation.intervals import Rate, clustered, wilson
    from whetstone.evaluation.measures import (
        Calibration,
        calibration,
        majority,
        pass_at_k,
        pass_hat_k,
        tool_productivity,
    )
    from whetstone.evaluation.success import Evaluation, evaluation_of, rate

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Calibration",
    "Evaluation",
    "Rate",
    "calibration",
    "clustered",
    "evaluation_of",
    "majority",
    "pass_at_k",
    "pass_hat_k",
    "rate",
    "tool_productivity",
    "wilson",
]
