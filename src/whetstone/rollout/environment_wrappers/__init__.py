"""Environment wrappers: components that respond to the policy instead of the environment."""

from whetstone.rollout.environment_wrappers.created_tools import CreatedTools as CreatedTools
from whetstone.rollout.environment_wrappers.log_replay import LogReplay as LogReplay
from whetstone.rollout.environment_wrappers.second_attempt import SecondAttempt as SecondAttempt
from whetstone.rollout.environment_wrappers.self_search import SelfSearch as SelfSearch
from whetstone.rollout.environment_wrappers.try_again import TryAgain as TryAgain

ENVIRONMENT_WRAPPERS = {
    "created_tools": CreatedTools,
    "log_replay": LogReplay,
    "second_attempt": SecondAttempt,
    "self_search": SelfSearch,
    "try_again": TryAgain,
}
