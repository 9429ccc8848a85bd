"""Where episodes happen."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.environments.catalogue import ENVIRONMENTS, TASKS_OF_WORLDS
    from whetstone.environments.game_environment import GameEnvironment, is_game, played
    from whetstone.environments.noisy import Noisy
    from whetstone.environments.protocol import (
        NEW_CONVERSATION,
        Environment,
        Game,
        GameObservation,
        Observation,
        Reply,
        StepResult,
        User,
    )
    from whetstone.environments.tool_environment import ToolEnvironment
    from whetstone.environments.users import USERS

__getattr__, __dir__ = window(__name__)

__all__ = [
    "ENVIRONMENTS",
    "NEW_CONVERSATION",
    "TASKS_OF_WORLDS",
    "USERS",
    "Environment",
    "Game",
    "GameEnvironment",
    "GameObservation",
    "Noisy",
    "Observation",
    "Reply",
    "StepResult",
    "ToolEnvironment",
    "User",
    "is_game",
    "played",
]
