"""Budgets of groups: number of samples and turns."""

from whetstone.rollout.budget_allocation.by_success import BySuccess as BySuccess
from whetstone.rollout.budget_allocation.horizon_stages import HorizonStages as HorizonStages

ALLOCATIONS = {"by_success": BySuccess, "horizon_stages": HorizonStages}
"""Built-in budget allocations by the name in `rollout.budget_allocation`."""
