"""What is a recipe? Everything that decides a run, as typed values declared once."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.recipe.methods import Method, read_method
    from whetstone.recipe.origins import origins, with_origins
    from whetstone.recipe.reading import built_in_methods, built_in_recipes, yaml_value
    from whetstone.recipe.resolved import Resolved, load_recipe
    from whetstone.recipe.settings import (
        AggregationSettings,
        CriticSettings,
        EntropySettings,
        ImitationSettings,
        OptimizerSettings,
        Part,
        PolicySettings,
        ProcessModelSettings,
        Recipe,
        ReinforcementSettings,
        RolloutSettings,
        SupervisedSettings,
        TinySettings,
    )

__getattr__, __dir__ = window(__name__)

__all__ = [
    "AggregationSettings",
    "CriticSettings",
    "EntropySettings",
    "ImitationSettings",
    "Method",
    "OptimizerSettings",
    "Part",
    "PolicySettings",
    "ProcessModelSettings",
    "Recipe",
    "ReinforcementSettings",
    "Resolved",
    "RolloutSettings",
    "SupervisedSettings",
    "TinySettings",
    "built_in_methods",
    "built_in_recipes",
    "load_recipe",
    "origins",
    "read_method",
    "with_origins",
    "yaml_value",
]
