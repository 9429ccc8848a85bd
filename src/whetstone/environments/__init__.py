"""Where episodes happen."""

from whetstone.environments.protocol import Environment, Observation, StepResult
from whetstone.environments.tool_environment import ToolEnvironment

ENVIRONMENTS = {"tools": ToolEnvironment}

__all__ = ["ENVIRONMENTS", "Environment", "Observation", "StepResult", "ToolEnvironment"]
