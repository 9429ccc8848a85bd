"""What is a recipe? Everything that decides a run, as typed values, with the knowledge of where each was written."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from whetstone.errors import RecipeError, did_you_mean
from whetstone.parts import plain_problem
from whetstone.recipe.aliases import canonical
from whetstone.recipe.checking import contradictions, without_effect
from whetstone.recipe.locating import located
from whetstone.recipe.reading import Keys, Places, changed, overridden, place_of, read, shortened
from whetstone.recipe.settings import Recipe

_HALF = re.compile("[\ud800-\udfff]")
_ODD = re.compile(r"[^\w ./:,()'+*<>=-]|^ | $")


@dataclass(frozen=True)
class Resolved:
    """A recipe with the knowledge of where each key was written."""

    recipe: Recipe
    name: str
    keys: Mapping[str, Any]
    """What was written, merged; defaults are not in it."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Dotted key → `file:line`."""

    def error(self, key: str, message: str) -> RecipeError:
        """An error that says where `key`, or the nearest key around it, was written."""
        return RecipeError(f"{place_of(self.places, key, self.name)}  {key}: {message}")

    def with_changes(self, changes: Mapping[str, Any]) -> Resolved:
        """The same recipe with dotted keys set; None takes a section out.

        Raises:
            RecipeError: As `load_recipe`.
        """
        said = {dotted: f"{self.name} with {dotted}={shortened(value)}" for dotted, value in changes.items()}
        return _resolved(self.name, *changed(self.keys, self.places, changes, said))

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


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Resolved:
    """A recipe by built-in name or file, with `key=value` overrides.

    Raises:
        RecipeError: No such recipe, YAML that does not parse, an unknown key, a wrong type, or a key
            without effect; the message has file, line and the nearest right thing.
    """
    return _resolved(Path(name).stem, *overridden(*read(name), overrides))


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Null takes a key out, so that it has its default again. Ablations are changes to come and keep theirs."""
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) and key != "ablations" else value
        for key, value in keys.items()
        if value is not None
    }


def _resolved(name: str, keys: Keys, places: Places) -> Resolved:
    keys = canonical(located(_without_nulls(keys), None))
    for dotted, said in _unsayable(keys, ""):
        raise RecipeError(f"{place_of(places, dotted, name)}  {dotted}: {said}")
    try:
        recipe = Recipe.model_validate(keys)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        dotted = ".".join(str(part) for part in problem["loc"])
        *above, last = problem["loc"] or ("",)
        said = plain_problem(problem)
        if problem["type"] == "extra_forbidden":
            said = f"no such key{did_you_mean(str(last), _fields_at(above))}"
        elif problem["type"] == "model_type":
            said += f"; keys below it are {', '.join(_fields_at(problem['loc']))}"
        raise RecipeError(f"{place_of(places, dotted, name)}  {dotted}: {said}") from None
    resolved = Resolved(recipe, name, keys, places)
    for key, reason in without_effect(recipe):
        if _is_set(keys, key):
            raise resolved.error(key, f"has no effect: {reason}")
    for key, said in contradictions(recipe):
        raise resolved.error(key, said)
    return resolved


def _unsayable(value: Any, dotted: str) -> Iterator[tuple[str, str]]:
    """(key, why) for what no file could say: numbers that are none, and halves of letters."""
    if isinstance(value, float) and not math.isfinite(value):
        yield dotted, f"a finite number is asked for, got {value}"
    elif isinstance(value, str) and _HALF.search(value):
        yield dotted, "it holds half a letter, which no text can"
    elif isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            below = f"{dotted}.{key}" if dotted else str(key)
            yield from _unsayable(str(key), below)
            yield from _unsayable(inner, below)


def _fields_at(path: Sequence[int | str]) -> list[str]:
    model: Any = Recipe
    for part in path:
        below = model.model_fields.get(str(part))
        model = next(_models(below.annotation), None) if below is not None else None
        if model is None:
            return []
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind


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
