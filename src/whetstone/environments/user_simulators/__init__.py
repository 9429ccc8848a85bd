"""User simulators: scripts, models at an endpoint, and people."""

from whetstone.environments.user_simulators.llm_user import EndpointUser as EndpointUser
from whetstone.environments.user_simulators.human import HumanUser as HumanUser
from whetstone.environments.user_simulators.scripted_requests import Requests as Requests
from whetstone.environments.user_simulators.scenario import ScenarioUser as ScenarioUser

USERS = {"endpoint": EndpointUser, "human": HumanUser, "requests": Requests, "scenario": ScenarioUser}
