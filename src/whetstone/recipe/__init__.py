"""Recipes: the typed configuration of a run, loaded from YAML and validated."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.recipe.critic_settings import (
        CriticSettings as CriticSettings,
        ProcessModelSettings as ProcessModelSettings,
    )
    from whetstone.recipe.live_settings import LiveSettings as LiveSettings
    from whetstone.recipe.methods import Method as Method, read_method as read_method
    from whetstone.recipe.key_sources import list_key_sources as list_key_sources, with_origins as with_origins
    from whetstone.recipe.settings_base import LossTermPart as LossTermPart, Part as Part
    from whetstone.recipe.policy_settings import (
        MemberSettings as MemberSettings,
        PolicySettings as PolicySettings,
        TinySettings as TinySettings,
    )
    from whetstone.recipe.loader import (
        built_in_methods as built_in_methods,
        built_in_recipes as built_in_recipes,
        yaml_value as yaml_value,
    )
    from whetstone.recipe.resolved import (
        Resolved as Resolved,
        load_recipe as load_recipe,
        load_stored_recipe as load_stored_recipe,
    )
    from whetstone.recipe.scale_settings import ScaleSettings as ScaleSettings
    from whetstone.recipe.settings import (
        AggregationSettings as AggregationSettings,
        ChatSettings as ChatSettings,
        ModelSettings as ModelSettings,
        Recipe as Recipe,
        RolloutSettings as RolloutSettings,
    )
    from whetstone.recipe.stage_settings import (
        DataSettings as DataSettings,
        DistillationSettings as DistillationSettings,
        EntropySettings as EntropySettings,
        ImitationSettings as ImitationSettings,
        OfflineSettings as OfflineSettings,
        OptimizerSettings as OptimizerSettings,
        PreferenceSettings as PreferenceSettings,
        PretrainingSettings as PretrainingSettings,
        ReinforcementSettings as ReinforcementSettings,
        RewardModelSettings as RewardModelSettings,
        SamplingSettings as SamplingSettings,
        SmoothnessSettings as SmoothnessSettings,
        StoredMixtureSettings as StoredMixtureSettings,
        SupervisedSettings as SupervisedSettings,
        UntilSettings as UntilSettings,
    )
    from whetstone.recipe.stage_recipes import NamedStage as NamedStage, list_stages as list_stages

__getattr__, __dir__ = export_lazily(__name__)
