"""Domains of tau2-bench, implemented here over its published data: database, tools, policy, tasks, final check."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.environments.tau2.airline import AirlineDesk as AirlineDesk
    from whetstone.environments.tau2.user_simulator import Caller as Caller, instruction_text as instruction_text
    from whetstone.environments.tau2.domain import Desk as Desk, wanted_differences as wanted_differences
    from whetstone.environments.tau2.retail import RetailDesk as RetailDesk
    from whetstone.environments.tau2.tau2_tasks import (
        AirlineTasks as AirlineTasks,
        RetailTasks as RetailTasks,
        TelecomTasks as TelecomTasks,
        parse_task as parse_task,
    )
    from whetstone.environments.tau2.telecom import TelecomDesk as TelecomDesk

__getattr__, __dir__ = export_lazily(__name__)
