"""Keys of a recipe that can change when a run continues, and the changes that were made to the recipe of a run.

Each settings class declares in `CHANGES` which of its fields can change, and the effect of a change. Fields that are
not declared define a run (model, tokenizer, tasks, environment, reward, seed) and cannot change.
"""

from __future__ import annotations

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
"""Effect → its meaning."""


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """One change of the recipe of a run: recorded when the run continued with other values."""

    stage: str
    """Stage in which the change applies."""
    step: int
    """Steps of the stage that were made before the change."""
    keys: Mapping[str, tuple[Any, Any]]
    """Dotted key → (value before, value after); None: absent."""
    next_group: int = 0
    """First group that is sampled with the new recipe if the change discards earlier unused groups."""
    time: float = 0.0
    """When the change was recorded, in seconds since the epoch."""

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
        """Return whether a run that has made these steps by stage is at the change or after it."""
        return done.get(self.stage, 0) >= self.step

    def to_json(self) -> dict[str, Any]:
        """Return the change as `changes.json` stores it."""
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
        """Return a change that `to_json` returned.

        Raises:
            LookupError, TypeError: A field is missing or has another type.
        """
        keys = {key: (each["before"], each["after"]) for key, each in stored["keys"].items()}
        return cls(stored["stage"], stored["step"], keys, stored["next_group"], stored["time"])


@dataclass(frozen=True, slots=True)
class Era:
    """Steps of a run that have one recipe."""

    resolved: Resolved
    changes: Sequence[RecipeChange] = field(default_factory=tuple)
    """Changes before these steps, earliest first."""
    end: RecipeChange | None = None
    """The change that ends them; None: the recipe is the current one."""

    def contains_step(self, stage: str, done: int) -> bool:
        """Return whether the step after `done` steps of a stage was made before the change that ends the era."""
        if self.end is None or stage != self.end.stage:
            return self.end is None or STAGE_KINDS.index(stage) < STAGE_KINDS.index(self.end.stage)
        return done < self.end.step


def parse_changes(stored: Any) -> list[RecipeChange]:
    """Return the changes that the content of `changes.json` holds, earliest first; None: none.

    Raises:
        ValueError: It holds something else.
    """
    try:
        return [RecipeChange.from_json(each) for each in stored or []]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def list_eras(current: Resolved, changes: Sequence[RecipeChange]) -> list[Era]:
    """Return the recipes that a run has had, earliest first; the last one is the current recipe."""
    eras = [Era(current, tuple(changes))]
    for number in reversed(range(len(changes))):
        before = {key: old for key, (old, _) in changes[number].keys.items()}
        resolved = eras[0].resolved.with_changes(before)
        eras.insert(0, Era(resolved, tuple(changes[:number]), changes[number]))
    return eras


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return dotted key → (value before, value after) of the keys of two recipes that differ; None: absent."""
    return dict(compare_keys(before, after))


def compare_keys(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield dotted key, value before and value after of nested keys that differ; None: absent."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            yield from compare_keys(before.get(name), after.get(name), f"{key}.{name}".lstrip("."))
    elif before != after:
        yield key, (before, after)


def find_effect(key: str) -> str:
    """Return the effect of a change of a dotted key in a run: a key of `EFFECTS`."""
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
    """Return the stage whose settings a dotted key belongs to; None: the key is of no single stage."""
    kind = key.partition(".")[0]
    return kind if kind in STAGE_KINDS else None


def _declared_effects(cls: type) -> Mapping[str, str]:
    declared: Mapping[str, str] = cls.__dict__.get("CHANGES", {})
    return declared


def _format_value(value: Any) -> str:
    text = "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
