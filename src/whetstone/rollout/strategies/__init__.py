"""How the trajectories of one task come about."""

from whetstone.rollout.strategies.balanced_branching import BalancedBranching
from whetstone.rollout.strategies.entropy_branching import EntropyBranching
from whetstone.rollout.strategies.forked import Forked
from whetstone.rollout.strategies.frontier_tree import FrontierTree
from whetstone.rollout.strategies.greedy_baseline import GreedyBaseline
from whetstone.rollout.strategies.guided_retry import GuidedRetry
from whetstone.rollout.strategies.independent import Independent
from whetstone.rollout.strategies.probed import Probed
from whetstone.rollout.strategies.self_play import SelfPlay

STRATEGIES = {
    "balanced_branching": BalancedBranching,
    "entropy_branching": EntropyBranching,
    "forked": Forked,
    "frontier_tree": FrontierTree,
    "greedy_baseline": GreedyBaseline,
    "guided_retry": GuidedRetry,
    "independent": Independent,
    "probed": Probed,
    "self_play": SelfPlay,
}

__all__ = [
    "STRATEGIES",
    "BalancedBranching",
    "EntropyBranching",
    "Forked",
    "FrontierTree",
    "GreedyBaseline",
    "GuidedRetry",
    "Independent",
    "Probed",
    "SelfPlay",
]
