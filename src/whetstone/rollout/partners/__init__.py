"""Who answers the policy in the environment's place."""

from whetstone.rollout.partners.log_replay import LogReplay
from whetstone.rollout.partners.second_attempt import SecondAttempt
from whetstone.rollout.partners.try_again import TryAgain

PARTNERS = {"log_replay": LogReplay, "second_attempt": SecondAttempt, "try_again": TryAgain}

__all__ = ["PARTNERS", "LogReplay", "SecondAttempt", "TryAgain"]
