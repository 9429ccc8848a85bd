"""What an episode was worth."""

from whetstone.rewards.attempts import attempts
from whetstone.rewards.exact_match import exact_match
from whetstone.rewards.exact_number import exact_number, last_number
from whetstone.rewards.final_answer import final_answer
from whetstone.rewards.matched_calls import matched_calls
from whetstone.rewards.meta_reasoning import meta_reasoning
from whetstone.rewards.protocol import Reward, provided_by, provides
from whetstone.rewards.retail import retail
from whetstone.rewards.unary_feedback import unary_feedback
from whetstone.rewards.verdict import returns, verdict

REWARDS = {
    "attempts": attempts,
    "exact_match": exact_match,
    "exact_number": exact_number,
    "matched_calls": matched_calls,
    "meta_reasoning": meta_reasoning,
    "retail": retail,
    "returns": returns,
    "unary_feedback": unary_feedback,
    "verdict": verdict,
}

__all__ = [
    "REWARDS",
    "Reward",
    "attempts",
    "exact_match",
    "exact_number",
    "final_answer",
    "last_number",
    "matched_calls",
    "meta_reasoning",
    "provided_by",
    "provides",
    "retail",
    "returns",
    "unary_feedback",
    "verdict",
]
