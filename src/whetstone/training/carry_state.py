"""Restores the state of stateful components (buffers, bandits, lesson libraries) from an earlier stage or run.

    the checkpoint of the previous stage → components of this stage with the same name and options

Note:
    States contain step numbers. The step counter of components therefore continues that of the earlier run. Policy
    versions of that run have no meaning here, so stored trajectories lose theirs.
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
from whetstone.record.checkpoint import Position, read_position
from whetstone.renames import stored_name
from whetstone.rollout import MethodComponents
from whetstone.rollout.method import ROLLOUT_KEYS

_BESIDE_ROLLOUT = ("curriculum", "reward")


def restore_component_state(
    method: MethodComponents, resolved: Resolved, position: Position, *, log: Callable[[str], None]
) -> tuple[MethodComponents, Position]:
    """Load the state of a method's stateful components from a checkpoint.

    The checkpoint is the last one of the run. Before the first step, the states are those of the runs in the recipe's
    `init_state_from`; later entries take precedence.

    Args:
        method: Method whose components receive their states.
        resolved: Recipe of the run.
        position: Position of the run, with the states of its last checkpoint.
        log: Receives one line about each restored component and its source.

    Returns:
        The method and the position, both with the number of steps of earlier runs.

    Raises:
        RecipeError: If an entry of `init_state_from` has no state of a component of this recipe.
        RunDirectoryError: If there is no readable checkpoint.
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
        source_position = read_position(checkpoint)
        same = _the_same(checkpoint, source_position, resolved.recipe)
        if not same:
            problem = f"{path} has no state of a component that this recipe has with the same options"
            raise resolved.error(f"init_state_from.{number}", problem)
        log(f"{', '.join(same)}: state restored from {checkpoint}")
        memory |= {name: (source_position.memory or {})[name] for name in same}
        steps = max(steps, source_position.steps_before + source_position.steps)
    method.hand_on(memory)
    return replace(method, steps_before=steps), replace(position, steps_before=steps)


def latest_checkpoints_with_state(resolved: Resolved, before: Sequence[Path]) -> list[str]:
    """Return the kept checkpoints of runs that have the latest state of a component of a recipe.

    Args:
        resolved: Recipe of the next stage.
        before: Run directories of the earlier stages, in order.

    Returns:
        Paths for `init_state_from`, the earliest first.
    """
    return checkpoints_with_state(resolved, [path for path in map(kept_checkpoint, before) if path is not None])


def checkpoints_with_state(resolved: Resolved, checkpoints: Sequence[Path]) -> list[str]:
    """Return the checkpoints that have the latest state of a component of a recipe.

    A component has the same name and the same options in both recipes.

    Args:
        resolved: Recipe of the run that receives the states.
        checkpoints: Checkpoints, the earliest first.
    """
    latest: dict[str, Path] = {}
    for checkpoint in checkpoints:
        latest |= dict.fromkeys(_the_same(checkpoint, read_position(checkpoint), resolved.recipe), checkpoint)
    return [str(checkpoint) for checkpoint in checkpoints if checkpoint in latest.values()]


def _the_same(checkpoint: Path, position: Position, recipe: Recipe) -> list[str]:
    """Return the components with a state in a checkpoint that this recipe has with the same options."""
    if not position.memory:
        return []
    stored_recipe = run_recipe(checkpoint.parent.parent).recipe
    pairs = ((name, _part(stored_recipe, name), _part(recipe, name)) for name in position.memory)
    return [name for name, one, other in pairs if one is not None and one == other]


def _part(recipe: Recipe, name: str) -> Part | None:
    """Return the component whose state is stored under this name."""
    key = name.partition(".")[0]
    part = getattr(recipe if key in _BESIDE_ROLLOUT else recipe.rollout, ROLLOUT_KEYS.get(key, key), None)
    if isinstance(part, list):
        return next((each for each in part if stored_name(f"{key}.{each.name}") == name), None)
    return part
