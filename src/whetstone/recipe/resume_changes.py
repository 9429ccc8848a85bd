"""Recipe keys that can change when a run resumes, and the recorded changes of a run.

Each settings class declares in `CHANGES` which of its fields can change, and the effect of a change. Fields that are
not declared define a run (model, tokenizer, tasks, environment, reward, seed) and cannot change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from whetstone.recipe.resolved import Resolved
from whetstone.recipe.settings import STAGE_KINDS, Recipe
from whetstone.recipe.settings_base import find_section

FIXED = "fixed"
EFFECTS = {
    "none": "does not affect results",
    "update": "applies to the updates after the change",
    "schedule": "applies from the change on; schedules are computed from the new values",
    "sampling": "applies to groups that are sampled after the change; earlier unused groups are discarded",
    "evaluation": "applies to the evaluations after the change",
    FIXED: "cannot change in a run",
}
"""Effect of a change → its meaning."""


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """Change of a run's recipe, recorded when the run resumed with other values.

    The run directory stores the changes in `changes.json`.
    """

    stage: str
    """Stage from which the change applies."""
    step: int
    """Number of steps of the stage that were made before the change."""
    keys: Mapping[str, tuple[Any, Any]]
    """Dotted key → (value before, value after); None if the key is absent."""
    next_group: int = 0
    """First group that is sampled with the new recipe, if the change discards unused groups."""
    time: float = 0.0
    """Time at which the change was recorded, in seconds since the epoch."""

    def __str__(self) -> str:
        values = ", ".join(
            f"{key} {_format_value(old)} → {_format_value(new)}" for key, (old, new) in self.keys.items()
        )
        return f"after step {self.step} of {self.stage}: {values}"

    @property
    def discards_groups(self) -> bool:
        """Whether groups that were sampled before the change and not used are discarded."""
        return any(find_effect(key) == "sampling" for key in self.keys)

    def is_reached(self, done: Mapping[str, int]) -> bool:
        """Return whether a run has reached the change.

        Args:
            done: Number of completed steps by stage.
        """
        return done.get(self.stage, 0) >= self.step

    def to_json(self) -> dict[str, Any]:
        """Return the change in the form of `changes.json`."""
        keys = {key: {"before": old, "after": new} for key, (old, new) in self.keys.items()}
        return {
            "stage": self.stage,
            "step": self.step,
            "keys": keys,
            "next_group": self.next_group,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RecipeChange:
        """Create a change from the form of `changes.json`.

        Raises:
            LookupError, TypeError: If a field is missing or has another type.
        """
        keys = {key: (each["before"], each["after"]) for key, each in stored["keys"].items()}
        return cls(stored["stage"], stored["step"], keys, stored["next_group"], stored["time"])


@dataclass(frozen=True, slots=True)
class Era:
    """Steps of a run that were made with the same recipe."""

    resolved: Resolved
    """Recipe of these steps."""
    changes: Sequence[RecipeChange] = field(default_factory=tuple)
    """Changes before these steps, earliest first."""
    end: RecipeChange | None = None
    """Change that ends these steps; None: the recipe is the current one."""

    def contains_step(self, stage: str, done: int) -> bool:
        """Return whether the next step of a stage belongs to this era.

        Args:
            stage: Kind of the stage.
            done: Number of completed steps of the stage.
        """
        if self.end is None or stage != self.end.stage:
            return self.end is None or STAGE_KINDS.index(stage) < STAGE_KINDS.index(self.end.stage)
        return done < self.end.step


def parse_changes(stored: Any) -> list[RecipeChange]:
    """Parse the content of `changes.json`, earliest change first; None means no change.

    Raises:
        ValueError: If the content has another form.
    """
    try:
        return [RecipeChange.from_json(each) for each in stored or []]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def list_eras(current: Resolved, changes: Sequence[RecipeChange]) -> list[Era]:
    """Return the recipes that a run has had, earliest first.

    Args:
        current: Current recipe of the run, which is the last era.
        changes: Recorded changes, earliest first.
    """
    eras = [Era(current, tuple(changes))]
    for number in reversed(range(len(changes))):
        before = {key: old for key, (old, _) in changes[number].keys.items()}
        resolved = eras[0].resolved.with_changes(before)
        eras.insert(0, Era(resolved, tuple(changes[:number]), changes[number]))
    return eras


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys of two recipes that differ.

    Returns:
        Dotted key → (value before, value after); None if the key is absent.
    """
    return dict(compare_keys(before, after))


def compare_keys(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield (dotted key, (value before, value after)) of nested keys that differ.

    A value is None if the key is absent.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            yield from compare_keys(before.get(name), after.get(name), f"{key}.{name}".lstrip("."))
    elif before != after:
        yield key, (before, after)


def find_effect(key: str) -> str:
    """Return the effect of changing a dotted key in a run, which is a key of `EFFECTS`."""
    model: type[BaseModel] | None = Recipe
    for part in key.split("."):
        if model is None:
            return FIXED
        if part not in model.model_fields:  # an option of a component, or the name of an entry
            continue
        effect = next((declared[part] for declared in map(_declared_effects, model.__mro__) if part in declared), None)
        if effect is not None:
            return effect
        model = find_section(model.model_fields[part].annotation)
    return FIXED


def find_stage(key: str) -> str | None:
    """Return the kind of stage whose settings contain a dotted key, or None."""
    kind = key.partition(".")[0]
    return kind if kind in STAGE_KINDS else None


def _declared_effects(cls: type) -> Mapping[str, str]:
    declared: Mapping[str, str] = cls.__dict__.get("CHANGES", {})
    return declared


def _format_value(value: Any) -> str:
    text = "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def format_override(value: Any) -> str:
    """Return a value of a recipe key as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
