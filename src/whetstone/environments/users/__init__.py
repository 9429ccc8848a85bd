"""Who the agent speaks to: scripts, and models behind an address."""

from whetstone.environments.users.endpoint import EndpointUser
from whetstone.environments.users.requests import Requests
from whetstone.environments.users.scenario import ScenarioUser

USERS = {"endpoint": EndpointUser, "requests": Requests, "scenario": ScenarioUser}

__all__ = ["USERS", "EndpointUser", "Requests", "ScenarioUser"]
