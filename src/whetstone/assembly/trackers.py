"""Who else is told of a run? The trackers its recipe names, made and checked before anything runs."""

from __future__ import annotations

from whetstone.assembly.instantiate import part_of
from whetstone.recipe import Resolved
from whetstone.reporting.trackers import TRACKERS, Tracker


def trackers_of(resolved: Resolved) -> dict[str, Tracker]:
    """By the name it has in the recipe, each tracker.

    Raises:
        RecipeError: There is none of this name, or its package is not installed.
    """
    return {
        part.name: part_of(resolved, f"trackers.{number}", "tracker", part, TRACKERS, {}, protocol=Tracker)
        for number, part in enumerate(resolved.recipe.trackers)
    }
