"""How the trajectories of one task come about."""

from whetstone.rollout.strategies.independent import Independent

STRATEGIES = {"independent": Independent}

__all__ = ["STRATEGIES", "Independent"]
