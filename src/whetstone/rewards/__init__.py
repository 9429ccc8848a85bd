"""What an episode was worth."""

from whetstone.rewards.exact_number import exact_number, last_number
from whetstone.rewards.protocol import Reward

REWARDS = {"exact_number": exact_number}

__all__ = ["REWARDS", "Reward", "exact_number", "last_number"]
