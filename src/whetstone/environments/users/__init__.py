"""Who the agent speaks to: scripts, models behind an address, and people."""

from whetstone.environments.users.endpoint import EndpointUser
from whetstone.environments.users.person import HumanUser
from whetstone.environments.users.requests import Requests
from whetstone.environments.users.scenario import ScenarioUser

USERS = {"endpoint": EndpointUser, "human": HumanUser, "requests": Requests, "scenario": ScenarioUser}

__all__ = ["USERS", "EndpointUser", "HumanUser", "Requests", "ScenarioUser"]
