"""Environment wrappers: components that respond to the policy instead of the environment."""

from whetstone.rollout.environment_wrappers.log_replay import LogReplay as LogReplay
from whetstone.rollout.environment_wrappers.second_attempt import SecondAttempt as SecondAttempt
from whetstone.rollout.environment_wrappers.self_search import SelfSearch as SelfSearch
from whetstone.rollout.environment_wrappers.try_again import TryAgain as TryAgain

ENVIRONMENT_WRAPPERS = {
    "log_replay": LogReplay,
    "second_attempt": SecondAttempt,
    "self_search": SelfSearch,
    "try_again": TryAgain,
}
