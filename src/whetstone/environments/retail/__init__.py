"""The retail domain of tau2-bench, built here over its published data: database, tools, policy, tasks, final check."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.environments.retail.desk import RetailDesk
    from whetstone.environments.retail.tasks import RetailTasks

__getattr__, __dir__ = window(__name__)

__all__ = ["RetailDesk", "RetailTasks"]
