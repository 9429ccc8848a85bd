"""Environments: interfaces, tool environments, games, adapters of other packages, remote environments and users."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.environments.registry import ENVIRONMENTS as ENVIRONMENTS, TASKS_OF_WORLDS as TASKS_OF_WORLDS
    from whetstone.environments.game_environment import (
        GameEnvironment as GameEnvironment,
        is_game as is_game,
        as_environment as as_environment,
    )
    from whetstone.environments.fault_injection import Noisy as Noisy
    from whetstone.environments.protocol import (
        NEW_CONVERSATION as NEW_CONVERSATION,
        Environment as Environment,
        Game as Game,
        GameObservation as GameObservation,
        Observation as Observation,
        Reply as Reply,
        StepResult as StepResult,
        User as User,
    )
    from whetstone.environments.tool_environment import ToolEnvironment as ToolEnvironment
    from whetstone.environments.user_simulators import USERS as USERS

__getattr__, __dir__ = export_lazily(__name__)
