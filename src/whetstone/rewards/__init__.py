"""What an episode was worth."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.rewards.answers.exact_match import exact_match
    from whetstone.rewards.answers.exact_number import exact_number, last_number
    from whetstone.rewards.answers.final_answer import final_answer
    from whetstone.rewards.built_in import REWARDS
    from whetstone.rewards.calls.matched_calls import matched_calls
    from whetstone.rewards.composed import Composed
    from whetstone.rewards.learned.model import RewardModel
    from whetstone.rewards.making import make_reward
    from whetstone.rewards.protocol import Compares, Reward, provided_by, provides
    from whetstone.rewards.scoring import REWARD_FAILED, compared, scored
    from whetstone.rewards.turns.attempts import attempts
    from whetstone.rewards.turns.meta_reasoning import meta_reasoning
    from whetstone.rewards.turns.unary_feedback import unary_feedback
    from whetstone.rewards.worlds.tau2 import tau2
    from whetstone.rewards.worlds.verdict import returns, verdict

__getattr__, __dir__ = window(__name__)

__all__ = [
    "REWARDS",
    "REWARD_FAILED",
    "Compares",
    "Composed",
    "Reward",
    "RewardModel",
    "attempts",
    "compared",
    "exact_match",
    "exact_number",
    "final_answer",
    "last_number",
    "make_reward",
    "matched_calls",
    "meta_reasoning",
    "provided_by",
    "provides",
    "returns",
    "scored",
    "tau2",
    "unary_feedback",
    "verdict",
]
