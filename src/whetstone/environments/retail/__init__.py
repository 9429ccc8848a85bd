"""The retail domain of tau2-bench, built here over its published data: database, tools, policy, tasks, final check."""

from whetstone.environments.retail.desk import RetailDesk
from whetstone.environments.retail.tasks import RetailTasks

__all__ = ["RetailDesk", "RetailTasks"]
