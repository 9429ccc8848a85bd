"""When an episode is to end before its time."""

from whetstone.rollout.stops.lagging import Lagging
from whetstone.rollout.stops.spent import Spent
from whetstone.rollout.stops.void_turn import VoidTurn

STOPS = {"stragglers": Lagging, "budget_exhausted": Spent, "void_turn": VoidTurn}

__all__ = ["STOPS", "Lagging", "Spent", "VoidTurn"]
