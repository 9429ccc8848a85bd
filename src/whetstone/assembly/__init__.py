"""Construction of the components of a recipe, checked before anything is sampled."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.assembly.assembly import (
        RunComponents as RunComponents,
        assemble as assemble,
        build_scoring_components as build_scoring_components,
    )
    from whetstone.assembly.environment import apply_call_policy as apply_call_policy, run_policy as run_policy
    from whetstone.assembly.stage_datasets import as_reinforcement as as_reinforcement
    from whetstone.assembly.preflight_checks import (
        run_engine_checks as run_engine_checks,
        run_preflight_checks as run_preflight_checks,
    )
    from whetstone.assembly.offline_data import build_episode_filter as build_episode_filter

__getattr__, __dir__ = export_lazily(__name__)
