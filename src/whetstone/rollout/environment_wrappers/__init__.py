"""Who answers the policy in the environment's place."""

from whetstone.rollout.environment_wrappers.log_replay import LogReplay
from whetstone.rollout.environment_wrappers.second_attempt import SecondAttempt
from whetstone.rollout.environment_wrappers.self_search import SelfSearch
from whetstone.rollout.environment_wrappers.try_again import TryAgain

ENVIRONMENT_WRAPPERS = {
    "log_replay": LogReplay,
    "second_attempt": SecondAttempt,
    "self_search": SelfSearch,
    "try_again": TryAgain,
}

__all__ = ["ENVIRONMENT_WRAPPERS", "LogReplay", "SecondAttempt", "SelfSearch", "TryAgain"]
