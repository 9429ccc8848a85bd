"""Environment checks: tests whether a built-in or custom environment satisfies the environment interface."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.evaluation.environment_checks.checks import Contract as Contract, check_contract as check_contract
    from whetstone.evaluation.environment_checks.play_episode import (
        PlayedEpisode as PlayedEpisode,
        play_with_policy as play_with_policy,
    )
    from whetstone.evaluation.environment_checks.random_policy import RandomPolicy as RandomPolicy

__getattr__, __dir__ = export_lazily(__name__)
