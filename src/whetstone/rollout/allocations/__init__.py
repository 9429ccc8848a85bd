"""How much a group may use: samples, turns."""

from whetstone.rollout.allocations.by_success import BySuccess
from whetstone.rollout.allocations.horizon_stages import HorizonStages

ALLOCATIONS = {"by_success": BySuccess, "horizon_stages": HorizonStages}

__all__ = ["ALLOCATIONS", "BySuccess", "HorizonStages"]
