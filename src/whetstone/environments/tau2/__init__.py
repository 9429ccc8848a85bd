"""Domains of tau2-bench, built here over its published data: database, tools, policy, tasks, final check."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.environments.tau2.airline import AirlineDesk
    from whetstone.environments.tau2.caller import Caller, told
    from whetstone.environments.tau2.desk import Desk, wanted_differences
    from whetstone.environments.tau2.retail import RetailDesk
    from whetstone.environments.tau2.tasks import AirlineTasks, RetailTasks, TelecomTasks, task_of
    from whetstone.environments.tau2.telecom import TelecomDesk

__getattr__, __dir__ = window(__name__)

__all__ = [
    "AirlineDesk",
    "AirlineTasks",
    "Caller",
    "Desk",
    "RetailDesk",
    "RetailTasks",
    "TelecomDesk",
    "TelecomTasks",
    "task_of",
    "told",
    "wanted_differences",
]
