"""Construction of a recipe's experiment trackers, before the run starts."""

from __future__ import annotations

from whetstone.assembly.instantiate import build_component
from whetstone.recipe import Resolved
from whetstone.reporting.trackers import TRACKERS, Tracker


def build_trackers(resolved: Resolved) -> dict[str, Tracker]:
    """Build the experiment trackers of a recipe (`trackers`), by name.

    Raises:
        RecipeError: If no tracker has the name, or its package is not installed.
    """
    return {
        part.name: build_component(resolved, f"trackers.{number}", "tracker", part, TRACKERS, {}, protocol=Tracker)
        for number, part in enumerate(resolved.recipe.trackers)
    }
