"""How does a run go? The loop, its stages, evaluations beside it, and what watches over it."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.training.evaluating import EvaluationRecord, evaluate, protocol_of
    from whetstone.training.interruption import Interrupted
    from whetstone.training.run import final_agent, final_policy, headline, train

__getattr__, __dir__ = window(__name__)

__all__ = [
    "EvaluationRecord",
    "Interrupted",
    "evaluate",
    "final_agent",
    "final_policy",
    "headline",
    "protocol_of",
    "train",
]
