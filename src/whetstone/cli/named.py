"""What does RUN_OR_RECIPE name? A run directory with its recipe, or a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whetstone import record
from whetstone.errors import RecipeError
from whetstone.recipe import Resolved, load_recipe


def recipe_of(named: str, overrides: Sequence[str]) -> tuple[Resolved, bool]:
    """(the recipe with overrides, whether it is that of a run)

    Raises:
        WhetstoneError: There is neither, or the recipe cannot be meant.
    """
    path = Path(named)
    if path.is_dir():
        return record.run_recipe(path).with_overrides(overrides), True
    if len(path.parts) > 1 and not path.exists() and not path.with_name(f"{path.name}.yaml").exists():
        raise RecipeError(f"{path}: neither a run nor a recipe is there")
    return load_recipe(named, overrides), False
