"""What is a recipe? Everything that decides a run, as typed values declared once."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.recipe.critic_settings import CriticSettings, ProcessModelSettings
    from whetstone.recipe.live_settings import LiveSettings
    from whetstone.recipe.methods import Method, read_method
    from whetstone.recipe.origins import origins, with_origins
    from whetstone.recipe.parts import LossTermPart, Part
    from whetstone.recipe.policy_settings import MemberSettings, PolicySettings, TinySettings
    from whetstone.recipe.reading import built_in_methods, built_in_recipes, yaml_value
    from whetstone.recipe.resolved import Resolved, load_recipe, load_stored_recipe
    from whetstone.recipe.scale_settings import ScaleSettings
    from whetstone.recipe.settings import (
        AggregationSettings,
        ChatSettings,
        ModelSettings,
        Recipe,
        RolloutSettings,
    )
    from whetstone.recipe.stage_settings import (
        DataSettings,
        DistillationSettings,
        EntropySettings,
        ImitationSettings,
        OfflineSettings,
        OptimizerSettings,
        PreferenceSettings,
        PretrainingSettings,
        ReinforcementSettings,
        RewardModelSettings,
        SamplingSettings,
        SmoothnessSettings,
        StoredMixtureSettings,
        SupervisedSettings,
        UntilSettings,
    )
    from whetstone.recipe.stages import NamedStage, stages_of

__getattr__, __dir__ = window(__name__)

__all__ = [
    "AggregationSettings",
    "ChatSettings",
    "CriticSettings",
    "DataSettings",
    "DistillationSettings",
    "EntropySettings",
    "ImitationSettings",
    "LiveSettings",
    "LossTermPart",
    "MemberSettings",
    "Method",
    "ModelSettings",
    "NamedStage",
    "OfflineSettings",
    "OptimizerSettings",
    "Part",
    "PolicySettings",
    "PreferenceSettings",
    "PretrainingSettings",
    "ProcessModelSettings",
    "Recipe",
    "ReinforcementSettings",
    "Resolved",
    "RewardModelSettings",
    "RolloutSettings",
    "SamplingSettings",
    "ScaleSettings",
    "SmoothnessSettings",
    "StoredMixtureSettings",
    "SupervisedSettings",
    "TinySettings",
    "UntilSettings",
    "built_in_methods",
    "built_in_recipes",
    "load_recipe",
    "load_stored_recipe",
    "origins",
    "read_method",
    "stages_of",
    "with_origins",
    "yaml_value",
]
