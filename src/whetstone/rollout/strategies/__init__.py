"""Rollout strategies: how the trajectories of a group are sampled."""

from whetstone.rollout.strategies.balanced_branching import BalancedBranching as BalancedBranching
from whetstone.rollout.strategies.best_of_n import (
    NOT_CHOSEN as NOT_CHOSEN,
    BestOf as BestOf,
    MajorityVote as MajorityVote,
)
from whetstone.rollout.strategies.entropy_branching import EntropyBranching as EntropyBranching
from whetstone.rollout.strategies.forked import RandomBranching as RandomBranching
from whetstone.rollout.strategies.frontier_tree import FrontierTree as FrontierTree
from whetstone.rollout.strategies.greedy_baseline import GreedyBaseline as GreedyBaseline
from whetstone.rollout.strategies.guided_retry import GuidedRetry as GuidedRetry
from whetstone.rollout.strategies.independent import Independent as Independent
from whetstone.rollout.strategies.doubt_injection import DoubtInjection as DoubtInjection
from whetstone.rollout.strategies.prover import Prover as Prover
from whetstone.rollout.strategies.revised_trajectories import RevisedTrajectories as RevisedTrajectories
from whetstone.rollout.strategies.self_play import SelfPlay as SelfPlay
from whetstone.rollout.strategies.sibling_turns import SiblingTurns as SiblingTurns
from whetstone.rollout.strategies.tree_search import TreeSearch as TreeSearch

STRATEGIES = {
    "balanced_branching": BalancedBranching,
    "entropy_branching": EntropyBranching,
    "random_branching": RandomBranching,
    "frontier_tree": FrontierTree,
    "greedy_baseline": GreedyBaseline,
    "guided_retry": GuidedRetry,
    "independent": Independent,
    "doubt_injection": DoubtInjection,
    "prover": Prover,
    "revised_trajectories": RevisedTrajectories,
    "self_play": SelfPlay,
    "sibling_turns": SiblingTurns,
}

SEARCHES = {
    "best_of": BestOf,
    "majority_vote": MajorityVote,
    "sibling_turns": SiblingTurns,
    "tree_search": TreeSearch,
}
"""Strategies for evaluations: they sample a task several times and select one answer."""
