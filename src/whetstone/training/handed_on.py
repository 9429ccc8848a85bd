"""What do parts of a method that remember begin with? With nothing, or with what the same part of an earlier run knew.

    lessons, stored successes, what a bandit has seen …: in the checkpoint of the stage before → the stage behind it

Easy to get wrong: what is remembered has dates. So the steps that parts are told of go on counting where those of the
earlier run ended, and its policy versions, which mean nothing here, are taken off what was drawn under them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whetstone.errors import RunDirectoryError
from whetstone.recipe import Part, Recipe, Resolved
from whetstone.recipe.settings import MEMORY_NEW
from whetstone.record import kept_checkpoint, run_recipe
from whetstone.record.checkpoint import Position, position_of
from whetstone.renames import stored_name
from whetstone.rollout import Method
from whetstone.rollout.method import ROLLOUT_KEYS

_BESIDE_ROLLOUT = ("curriculum", "reward")


def gone_on(
    method: Method, resolved: Resolved, position: Position, *, say: Callable[[str], None]
) -> tuple[Method, Position]:
    """Return the method and position of a run with the state of its components loaded.

    The state is that of the run's last checkpoint. Before the first step it is that of the runs in `init_state_from` of
    the recipe; later entries take precedence.

    Args:
        say: Told which part goes on from where.

    Raises:
        RecipeError: An entry of `init_state_from` has no state of a component of this recipe.
        RunDirectoryError: There is no checkpoint that can be read.
    """
    if position.done:
        method.load_state(position.memory or {})
        return replace(method, steps_before=position.steps_before), position
    memory: dict[str, Any] = {}
    steps = 0
    for number, written in enumerate(resolved.recipe.init_state_from):
        if written == MEMORY_NEW:
            continue
        path = Path(written)
        checkpoint = path if (path / "trainer").is_dir() else kept_checkpoint(path)
        if checkpoint is None:
            raise RunDirectoryError(f"{path}: no checkpoint that can be read")
        there = position_of(checkpoint)
        same = _the_same(checkpoint, there, resolved.recipe)
        if not same:
            problem = f"{path} has no state of a component that this recipe has with the same options"
            raise resolved.error(f"init_state_from.{number}", problem)
        say(f"{', '.join(same)}: goes on from what {checkpoint} remembers")
        memory |= {name: (there.memory or {})[name] for name in same}
        steps = max(steps, there.steps_before + there.steps)
    method.hand_on(memory)
    return replace(method, steps_before=steps), replace(position, steps_before=steps)


def remembering(resolved: Resolved, before: Sequence[Path]) -> list[str]:
    """Of each part of a recipe, the last of these runs that holds the same: their checkpoints, the earliest first."""
    return checkpoints_with_state(resolved, [path for path in map(kept_checkpoint, before) if path is not None])


def checkpoints_with_state(resolved: Resolved, checkpoints: Sequence[Path]) -> list[str]:
    """Return those checkpoints that have the latest state of a component that the recipe has with the same options."""
    found: dict[str, Path] = {}
    for checkpoint in checkpoints:
        found |= dict.fromkeys(_the_same(checkpoint, position_of(checkpoint), resolved.recipe), checkpoint)
    return [str(checkpoint) for checkpoint in checkpoints if checkpoint in found.values()]


def _the_same(checkpoint: Path, position: Position, recipe: Recipe) -> list[str]:
    """Names of the parts that a checkpoint remembers and this recipe has, written alike."""
    if not position.memory:
        return []
    there = run_recipe(checkpoint.parent.parent).recipe
    alike = ((name, _part(there, name), _part(recipe, name)) for name in position.memory)
    return [name for name, one, other in alike if one is not None and one == other]


def _part(recipe: Recipe, name: str) -> Part | None:
    """The component whose state is stored under this name."""
    key = name.partition(".")[0]
    part = getattr(recipe if key in _BESIDE_ROLLOUT else recipe.rollout, ROLLOUT_KEYS.get(key, key), None)
    if isinstance(part, list):
        return next((each for each in part if stored_name(f"{key}.{each.name}") == name), None)
    return part
