"""What is a recipe? Everything that decides a run, as typed values, with the knowledge of where each was written."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from whetstone.errors import RecipeError
from whetstone.masking import known_secrets, remember_secret
from whetstone.plugins import OptionError, with_names
from whetstone.recipe.aliases import alias_of, canonical
from whetstone.recipe.checking import contradictions, remarks, without_effect
from whetstone.recipe.locating import located, relocated
from whetstone.recipe.methods import Laid, read_method, with_methods
from whetstone.recipe.parts import section_of
from whetstone.recipe.problems import renamed_keys, unknown_nulls
from whetstone.recipe.reading import (
    WORLD,
    Keys,
    Places,
    Stack,
    built_in_methods,
    changed,
    layered,
    merged,
    overrides_read,
    place_of,
    read,
    shortened,
)
from whetstone.recipe.settings import Recipe
from whetstone.recipe.upgrade import upgrade_recipe
from whetstone.recipe.variables import describe_unset, expand_variables, mask_literals, with_references

_HALF = re.compile("[\ud800-\udfff]")
_WITHOUT_BOUND = ("reinforcement.max_mismatch_kl",)
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
    worlds: tuple[str, ...] = ()
    """Its name and those of what it extends, without methods."""
    notes: tuple[str, ...] = ()
    """What a person should know of how it came about, a line each."""
    unset: tuple[tuple[str, str], ...] = ()
    """(key, variable) of each `${NAME}` whose environment variable is not set."""

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
        return self._changed(_given(self.name, sections, changes))

    def with_overrides(self, overrides: Sequence[str]) -> Resolved:
        """The same recipe with `key=value` overrides, values in YAML.

        Raises:
            RecipeError: As `load_recipe`.
        """
        return self._changed(overrides_read(overrides))

    def _changed(self, changes: _Changes) -> Resolved:
        stack = Stack(self.worlds, dict(self.keys), dict(self.places))
        return _built(self.name, stack, [changes]).with_notes(self.notes)

    def with_notes(self, notes: Sequence[str]) -> Resolved:
        """Return the same recipe with the notes of an earlier form of it."""
        return replace(self, notes=tuple(dict.fromkeys((*notes, *self.notes))))

    def check_variables(self) -> None:
        """Check that the recipe can be used, not only shown.

        Raises:
            RecipeError: It names an environment variable that is not set.
        """
        for key, variable in self.unset:
            raise self.error(key, describe_unset(variable))

    def stored(self) -> dict[str, Any]:
        """Return all values, as they are stored and shown: `${NAME}` is kept, and literal secrets are masked."""
        return mask_literals(with_references(self.recipe.model_dump(mode="json"), self.keys))[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, and the secrets that the process that loads the recipe must mask."""
        return {**self.__dict__, "secrets": known_secrets()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the fields."""
        for value, replacement in state.pop("secrets").items():
            remember_secret(value, replacement)
        self.__dict__.update(state)

    def dump(self) -> str:
        """The recipe as YAML with every default written out; loading it gives the same recipe."""
        written = self.stored()
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
    recipe: str | Path | Mapping[str, Any] | Recipe | Resolved,
    overrides: Sequence[str] = (),
    *,
    with_: str | Sequence[Any] | None = None,
    **sections: Any,
) -> Resolved:
    """A recipe by built-in name, from a file, or from keys in Python, where functions and classes may stand for names.

        load_recipe("demo", advantage=my_function, reinforcement={"steps": 3})
        load_recipe("shop.yaml", with_=["gigpo", "entropy-branching"])
        load_recipe({"extends": "demo", "with": "dapo", "environment": {"tools": [my_tool]}}, ["seed=1"])

    Args:
        recipe: A mapping has the keys of a file. The name of a method is that method on `demo`.
        overrides: `key=value`, values in YAML, as on the command line.
        with_: Methods that are laid over it, in the place of those it names by `with`: names of ours or files.
        sections: Keys of the recipe, mappings merged with what is there; None takes one out.

    Raises:
        RecipeError: No such recipe or method, YAML that does not parse, an unknown key, a wrong type, a key without
            effect, or methods that do not go together; the message has file, line and the nearest right thing.
    """
    name, stack = _read(recipe)
    given = _given(name, {**sections, "with": with_} if with_ is not None else sections, {})
    found = _built(name, stack, [given, overrides_read(overrides)])
    return found.with_notes(recipe.notes) if isinstance(recipe, Resolved) else found


def load_stored_recipe(path: Path, *, moved: Mapping[str, Path] = MappingProxyType({})) -> Resolved:
    """Return the recipe that a run has stored; names of earlier releases are converted.

    Args:
        moved: Dotted key → path of an input that is used if the stored path no longer exists.

    Raises:
        RecipeError: Same as `load_recipe`.
    """
    resolved = _built(path.stem, read(path, convert=lambda keys: relocated(upgrade_recipe(keys), moved)), [])
    return replace(resolved, keys=_without_defaults(resolved.keys, Recipe))


def _without_defaults(keys: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return stored keys without values that are defaults.

    A change can make a key have no effect, which is an error if the key is set. The default learning rate depends on
    the policy and is kept.
    """
    remaining: dict[str, Any] = {}
    for key, value in keys.items():
        field = model.model_fields.get(key)
        inner = section_of(field.annotation) if field is not None else None
        if inner is not None and isinstance(value, Mapping) and inner.model_fields.keys() & value.keys():
            remaining[key] = _without_defaults(value, inner)
        elif field is None or key == "learning_rate" or field.default != value or field.default_factory is not None:
            remaining[key] = value
    return remaining


_Changes = tuple[Mapping[str, Any], Mapping[str, str]]
"""Dotted keys, and where each is said."""


def _read(recipe: str | Path | Mapping[str, Any] | Recipe | Resolved) -> tuple[str, Stack]:
    """(name, what was written)"""
    if isinstance(recipe, Resolved):
        return recipe.name, Stack(recipe.worlds, dict(recipe.keys), dict(recipe.places))
    if isinstance(recipe, str | Path):
        return Path(recipe).stem, read(recipe)
    keys = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else with_names(recipe)
    parent = keys.pop("extends", None)
    return "recipe", (read(str(parent)) if parent is not None else Stack()).extended("recipe", keys, {})


def _given(name: str, sections: Mapping[str, Any], changes: Mapping[str, Any]) -> _Changes:
    """What is given in Python; mappings of sections are merged with what is there."""
    named: Mapping[str, Any] = with_names({**sections, **changes})
    masked, _ = mask_literals(named)
    said = {dotted: f"{name} with {dotted}={shortened(value)}" for dotted, value in masked.items()}
    return {key: _Section(value) if key in sections else value for key, value in named.items()}, said


@dataclass(frozen=True, slots=True)
class _Section:
    """A value that is merged with what is there."""

    value: Any


def _built(name: str, stack: Stack, given: Sequence[_Changes]) -> Resolved:
    """What was written, methods over it, and what is given over both."""
    named, place, outside = stack.methods, stack.places.get("with", name), name in stack.always
    for changes, said in given:
        if "with" in changes:
            value = changes["with"]
            named, place, outside = value.value if isinstance(value, _Section) else value, said["with"], True
    notes: list[str] = []
    if stack.always:
        (method,) = stack.always
        notes.append(f"{method} is a method; here it is laid over {WORLD}: {WORLD} with={method}")
        name = WORLD if name == method else name
        named = [method, *([named] if isinstance(named, str | Mapping) else named or [])]
    laid = with_methods(stack.keys, stack.places, named, stack.names, place)
    if laid.methods and outside:
        name = f"{name}-with-{'-'.join(each.name for each in laid.methods)}"
    keys, places = merged(laid.keys, stack.above), {**laid.places, **stack.places_above}
    for changes, said in given:
        plain = {key: value for key, value in changes.items() if key != "with"}
        sections = {key: value.value for key, value in plain.items() if isinstance(value, _Section)}
        values = {**plain, **layered(keys, sections)}
        keys, places = changed(keys, places, values, said)
    return _resolved(name, keys, places, stack.names, laid, (*notes, *laid.notes))


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Null takes a key out, so that it has its default again. Ablations are changes to come and keep theirs."""
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) and key != "ablations" else value
        for key, value in keys.items()
        if value is not None
    }


def _resolved(
    name: str, keys: Keys, places: Places, worlds: tuple[str, ...], laid: Laid, notes: tuple[str, ...]
) -> Resolved:
    for wrong in (*renamed_keys(keys), *unknown_nulls(Recipe, keys)):
        raise RecipeError(f"{place_of(places, wrong.key, name)}  {wrong}")
    keys = located(_without_nulls(keys), None)
    notes = (*notes, *_partial_methods(keys, laid))
    keys, fitted = _fit_minibatches(canonical(keys), places, laid)
    notes = (*notes, *fitted)
    try:
        values, unset = expand_variables(keys)
    except OptionError as error:
        raise RecipeError(f"{place_of(places, error.key, name)}  {error}") from None
    values = canonical(located(values, None))
    _, masked = mask_literals(keys)
    secret = tuple(
        f"{place_of(places, key, name)}  {key}: a secret in the recipe, masked in files, reports and trackers; write "
        f"${{NAME}} here and export NAME"
        for key in masked
    )
    for dotted, said in _unsayable(keys, ""):
        raise RecipeError(f"{place_of(places, dotted, name)}  {dotted}: {said}")
    for method, dotted, wanted in laid.unmet(keys):
        raise RecipeError(f"{name}: {method.name} needs {dotted}: {wanted}")
    try:
        recipe = Recipe.model_validate(values)
    except OptionError as error:
        for key, variable in unset:
            if key == error.key:
                raise RecipeError(f"{place_of(places, key, name)}  {key}: {describe_unset(variable)}") from None
        raise RecipeError(f"{place_of(places, error.key, name)}  {error}") from None
    resolved = Resolved(recipe, name, keys, places, worlds, (*notes, *secret, *remarks(recipe)), tuple(unset))
    for key, reason in without_effect(recipe):
        if _is_set(keys, key):
            raise resolved.error(key, f"has no effect: {reason}")
    for key, said in contradictions(recipe):
        raise resolved.error(key, said)
    return resolved


def _fit_minibatches(keys: Keys, places: Places, laid: Laid) -> tuple[Keys, list[str]]:
    """Lower the number of minibatches that a method sets to the number of groups of a step."""
    key, stage = "reinforcement.minibatches", keys.get("reinforcement")
    method = next((each.name for each in laid.methods if each.places.get(key) == places.get(key, "")), None)
    if method is None or not isinstance(stage, Mapping):
        return keys, []
    groups, minibatches = stage.get("tasks_per_step", 16), stage.get("minibatches")
    if not isinstance(groups, int) or not isinstance(minibatches, int) or not 0 < groups < minibatches:
        return keys, []
    note = f"{method}: {key} is {groups}, not {minibatches}: a step has {groups} groups (reinforcement.tasks_per_step)"
    return {**keys, "reinforcement": {**stage, "minibatches": groups}}, [note]


def _partial_methods(keys: Mapping[str, Any], laid: Laid) -> Iterator[str]:
    """Yield a note if the estimator has the name of a method that sets other keys too."""
    name = alias_of("advantage", keys)
    method = name.replace("_", "-").replace("++", "-plus-plus")
    if method not in built_in_methods() or method in (each.name for each in laid.methods):
        return
    more = [key for key in read_method(method).keys if key not in ("advantage", "title", "paper") and key not in keys]
    if more:
        yield f"advantage: {name} is the estimator of a method that also sets {', '.join(more)}; use with={method}"


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
