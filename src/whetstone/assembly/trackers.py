"""Experiment trackers of a recipe, created and checked before the run starts."""

from __future__ import annotations

from whetstone.assembly.instantiate import build_component
from whetstone.recipe import Resolved
from whetstone.reporting.trackers import TRACKERS, Tracker


def build_trackers(resolved: Resolved) -> dict[str, Tracker]:
    """Return each tracker by its name in the recipe.

    Raises:
        RecipeError: If there is none of this name, or its package is not installed.
    """
    return {
        part.name: build_component(resolved, f"trackers.{number}", "tracker", part, TRACKERS, {}, protocol=Tracker)
        for number, part in enumerate(resolved.recipe.trackers)
    }
