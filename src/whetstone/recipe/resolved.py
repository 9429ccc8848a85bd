"""What is a recipe? Everything that decides a run, as typed values, with the knowledge of where each was written."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from whetstone.errors import RecipeError
from whetstone.plugins import OptionError, with_names
from whetstone.recipe.aliases import canonical
from whetstone.recipe.checking import contradictions, without_effect
from whetstone.recipe.locating import located
from whetstone.recipe.reading import Keys, Places, changed, layered, overridden, place_of, read, shortened
from whetstone.recipe.settings import Recipe

_HALF = re.compile("[\ud800-\udfff]")
_WITHOUT_BOUND = ("reinforcement.max_mismatch",)
"""Keys that say `.inf` for any."""
_ODD = re.compile(r"[^\w ./:,()'+*<>=-]|^ | $")


@dataclass(frozen=True)
class Resolved:
    """A recipe with the knowledge of where each key was written."""

    recipe: Recipe
    name: str
    keys: Mapping[str, Any]
    """What was written, merged; defaults are not in it."""
    places: Places = field(default_factory=dict)
    """Dotted key → `file:line`."""

    def error(self, key: str, message: str) -> RecipeError:
        """An error that says where `key`, or the nearest key around it, was written."""
        return RecipeError(f"{place_of(self.places, key, self.name)}  {key}: {message}")

    def with_changes(self, changes: Mapping[str, Any] = MappingProxyType({}), /, **sections: Any) -> Resolved:
        """The same recipe with dotted keys set; None takes a section out. A function or class may stand for a name.

        Args:
            sections: Keys of the recipe, mappings merged with what is there.

        Raises:
            RecipeError: As `load_recipe`.
        """
        return _resolved(self.name, *_with_changes(self.name, self.keys, self.places, changes, sections))

    def with_overrides(self, overrides: Sequence[str]) -> Resolved:
        """The same recipe with `key=value` overrides, values in YAML.

        Raises:
            RecipeError: As `load_recipe`.
        """
        return _resolved(self.name, *overridden(self.keys, self.places, overrides))

    def dump(self) -> str:
        """The recipe as YAML with every default written out; loading it gives the same recipe."""
        written = self.recipe.model_dump(mode="json", exclude_none=False)
        for dotted, _ in without_effect(self.recipe):  # only defaults: what was set without effect is refused
            *above, last = dotted.split(".")
            section = written
            for key in above:
                section = section.get(key) or {}
            section.pop(last, None)
        lines = CommentedMap()
        for key, value in written.items():
            if value in (None, "", {}) and key not in self.keys:
                continue
            lines[key] = _compact(value, keep_none=key == "ablations")
        yaml = YAML()
        yaml.width = 110
        stream = io.StringIO()
        yaml.dump(lines, stream)
        return stream.getvalue()


def load_recipe(
    recipe: str | Path | Mapping[str, Any] | Recipe | Resolved, overrides: Sequence[str] = (), **sections: Any
) -> Resolved:
    """A recipe by built-in name, from a file, or from keys in Python, where functions and classes may stand for names.

        load_recipe("demo", advantage=my_function, reinforcement={"steps": 3})
        load_recipe({"extends": "demo", "environment": {"tools": [my_tool]}}, ["seed=1"])

    Args:
        recipe: A mapping has the keys of a file.
        overrides: `key=value`, values in YAML, as on the command line.
        sections: Keys of the recipe, mappings merged with what is there; None takes one out.

    Raises:
        RecipeError: No such recipe, YAML that does not parse, an unknown key, a wrong type, or a key
            without effect; the message has file, line and the nearest right thing.
    """
    name, keys, places = _read(recipe)
    return _resolved(name, *overridden(*_with_changes(name, keys, places, {}, sections), overrides))


def _read(recipe: str | Path | Mapping[str, Any] | Recipe | Resolved) -> tuple[str, Mapping[str, Any], Places]:
    """(name, keys, where each was written)"""
    if isinstance(recipe, Resolved):
        return recipe.name, recipe.keys, dict(recipe.places)
    if isinstance(recipe, str | Path):
        return Path(recipe).stem, *read(recipe)
    keys = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else with_names(recipe)
    parent = keys.pop("extends", None)
    base, places = read(parent) if parent is not None else ({}, {})
    return "recipe", {**base, **layered(base, keys)}, places


def _with_changes(
    name: str, keys: Mapping[str, Any], places: Places, changes: Mapping[str, Any], sections: Mapping[str, Any]
) -> tuple[Keys, Places]:
    """Keys and their places with dotted keys set, and sections merged."""
    named: Mapping[str, Any] = with_names({**sections, **changes})
    said = {dotted: f"{name} with {dotted}={shortened(value)}" for dotted, value in named.items()}
    merged = layered(keys, {key: named[key] for key in sections})
    return changed(keys, places, {**named, **merged}, said)


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Null takes a key out, so that it has its default again. Ablations are changes to come and keep theirs."""
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) and key != "ablations" else value
        for key, value in keys.items()
        if value is not None
    }


def _extended(parent: Any) -> tuple[Keys, Places]:
    return read(str(parent)) if parent is not None else ({}, {})


def _resolved(name: str, keys: Keys, places: Places) -> Resolved:
    keys = canonical(located(_without_nulls(keys), None))
    for dotted, said in _unsayable(keys, ""):
        raise RecipeError(f"{place_of(places, dotted, name)}  {dotted}: {said}")
    try:
        recipe = Recipe.model_validate(keys)
    except OptionError as error:
        raise RecipeError(f"{place_of(places, error.key, name)}  {error}") from None
    resolved = Resolved(recipe, name, keys, places)
    for key, reason in without_effect(recipe):
        if _is_set(keys, key):
            raise resolved.error(key, f"has no effect: {reason}")
    for key, said in contradictions(recipe):
        raise resolved.error(key, said)
    return resolved


def _unsayable(value: Any, dotted: str) -> Iterator[tuple[str, str]]:
    """(key, why) for what no file could say: numbers that are none, and halves of letters."""
    if isinstance(value, float) and not math.isfinite(value) and dotted not in _WITHOUT_BOUND:
        yield dotted, f"a finite number is asked for, got {value}"
    elif isinstance(value, str) and _HALF.search(value):
        yield dotted, "it holds half a letter, which no text can"
    elif isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            below = f"{dotted}.{key}" if dotted else str(key)
            yield from _unsayable(str(key), below)
            yield from _unsayable(inner, below)


def _is_set(keys: Mapping[str, Any], dotted: str) -> bool:
    node: Any = keys
    for part in dotted.split("."):
        if not isinstance(node, Mapping) or node.get(part) is None:
            return False
        node = node[part]
    return True


def _compact(value: Any, *, keep_none: bool) -> Any:
    """Sections on one line where they fit."""
    if isinstance(value, Mapping):
        written = CommentedMap(
            (_text(key), _compact(below, keep_none=keep_none))
            for key, below in value.items()
            if below is not None or keep_none
        )
        written.fa.set_flow_style()
        return written
    if isinstance(value, list):
        return [_compact(below, keep_none=keep_none) for below in value]
    return _text(value)


def _text(value: Any) -> Any:
    """A text with signs of YAML in it is quoted: what is written without quotes is not always read as it was."""
    return DoubleQuotedScalarString(value) if isinstance(value, str) and _ODD.search(value) else value
