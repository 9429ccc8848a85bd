"""Episodes: one, many at once, and who acts in them."""

from whetstone.rollout.actors import ExpertActor, PolicyActor
from whetstone.rollout.admission import Admission
from whetstone.rollout.collector import Collector
from whetstone.rollout.protocol import Action, Actor, Moment, Roller, Strategy
from whetstone.rollout.runner import Limits, run_episode
from whetstone.rollout.status import RolloutStatus
from whetstone.rollout.strategies import STRATEGIES, Independent

__all__ = [
    "STRATEGIES",
    "Action",
    "Actor",
    "Admission",
    "Collector",
    "ExpertActor",
    "Independent",
    "Limits",
    "Moment",
    "PolicyActor",
    "Roller",
    "RolloutStatus",
    "Strategy",
    "run_episode",
]
