"""How the trajectories of one task come about."""

from whetstone.rollout.strategies.balanced_branching import BalancedBranching
from whetstone.rollout.strategies.choosing import NOT_CHOSEN, BestOf, MajorityVote
from whetstone.rollout.strategies.entropy_branching import EntropyBranching
from whetstone.rollout.strategies.forked import Forked
from whetstone.rollout.strategies.frontier_tree import FrontierTree
from whetstone.rollout.strategies.greedy_baseline import GreedyBaseline
from whetstone.rollout.strategies.guided_retry import GuidedRetry
from whetstone.rollout.strategies.independent import Independent
from whetstone.rollout.strategies.probed import Probed
from whetstone.rollout.strategies.prover import Prover
from whetstone.rollout.strategies.revised import Revised
from whetstone.rollout.strategies.self_play import SelfPlay
from whetstone.rollout.strategies.tree_search import TreeSearch

STRATEGIES = {
    "balanced_branching": BalancedBranching,
    "entropy_branching": EntropyBranching,
    "random_branching": Forked,
    "frontier_tree": FrontierTree,
    "greedy_baseline": GreedyBaseline,
    "guided_retry": GuidedRetry,
    "independent": Independent,
    "doubt_injection": Probed,
    "prover": Prover,
    "revised_trajectories": Revised,
    "self_play": SelfPlay,
}

SEARCHES = {"best_of": BestOf, "majority_vote": MajorityVote, "tree_search": TreeSearch}
"""Those that try a task several times and let one try answer: for evaluations."""

__all__ = [
    "NOT_CHOSEN",
    "SEARCHES",
    "STRATEGIES",
    "BalancedBranching",
    "BestOf",
    "EntropyBranching",
    "Forked",
    "FrontierTree",
    "GreedyBaseline",
    "GuidedRetry",
    "Independent",
    "MajorityVote",
    "Probed",
    "Prover",
    "Revised",
    "SelfPlay",
    "TreeSearch",
]
