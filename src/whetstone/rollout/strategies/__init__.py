"""How the trajectories of one task come about."""

from whetstone.rollout.strategies.forked import Forked
from whetstone.rollout.strategies.greedy_baseline import GreedyBaseline
from whetstone.rollout.strategies.independent import Independent

STRATEGIES = {"forked": Forked, "greedy_baseline": GreedyBaseline, "independent": Independent}

__all__ = ["STRATEGIES", "Forked", "GreedyBaseline", "Independent"]
