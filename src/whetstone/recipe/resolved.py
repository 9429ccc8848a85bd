"""Resolved recipe: the validated configuration of a run, with the origin of each key.

Aliases of component names, from papers and other libraries, are in `aliases.toml`.
"""

from __future__ import annotations

import io
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from whetstone.errors import RecipeError
from whetstone.masking import known_secrets, remember_secret
from whetstone.plugins import OptionError, to_serializable
from whetstone.recipe.error_messages import find_renamed_keys, find_unknown_nulls
from whetstone.recipe.loader import (
    WORLD,
    Keys,
    LayeredKeys,
    Places,
    apply_changes,
    built_in_methods,
    find_origin,
    layer_sections,
    merge_keys,
    parse_overrides,
    read,
    shorten_value,
)
from whetstone.recipe.methods import LayeredRecipe, apply_methods, read_method
from whetstone.recipe.resolve_paths import relocate_paths, resolve_paths
from whetstone.recipe.settings import Recipe
from whetstone.recipe.settings_base import find_section
from whetstone.recipe.upgrade import list_deprecated_keys, replace_deprecated_keys, upgrade_recipe
from whetstone.recipe.validation import find_contradictions, find_unused_keys, list_warnings
from whetstone.recipe.variables import describe_unset, expand_variables, mask_literals, with_references

_HALF = re.compile("[\ud800-\udfff]")
_WITHOUT_BOUND = ("reinforcement.max_mismatch_kl",)
"""Keys that accept `.inf` for no limit."""
_ODD = re.compile(r"[^\w ./:,()'+*<>=-]|^ | $")


@dataclass(frozen=True)
class Resolved:
    """Validated recipe, with the origin of each key for error messages.

    `load_recipe` creates it.
    """

    recipe: Recipe
    """Validated settings, with defaults and with the values of environment variables."""
    name: str
    """Name of the recipe, used for the default run directory and in messages."""
    keys: Mapping[str, Any]
    """Merged keys as written, without defaults."""
    places: Places = field(default_factory=dict)
    """Origin of each key: dotted key → `file:line`, or the override that set it."""
    worlds: tuple[str, ...] = ()
    """Names of the recipe and of those it extends, without methods."""
    notes: tuple[str, ...] = ()
    """Notices for the user, one line each, such as keys that a method overrides."""
    unset: tuple[tuple[str, str], ...] = ()
    """(key, variable) of each `${NAME}` whose environment variable is not set."""

    def error(self, key: str, message: str) -> RecipeError:
        """Create an error about a key, which starts with the origin of the key.

        Args:
            key: Dotted recipe key.
            message: Problem and remedy.

        Returns:
            Error with the text `file:line  key: message`; a key without an origin has that of its nearest section.
        """
        return RecipeError(f"{find_origin(self.places, key, self.name)}  {key}: {message}")

    def with_changes(self, changes: Mapping[str, Any] = MappingProxyType({}), /, **sections: Any) -> Resolved:
        """Return a copy of the recipe with some keys changed.

        Functions and classes can replace names of components.

        Args:
            changes: New value by dotted key; None removes a section.
            sections: Recipe keys; mappings are merged with the present ones.

        Raises:
            RecipeError: If the changed recipe is invalid; see `load_recipe`.
        """
        return self._apply(_python_changes(self.name, sections, changes))

    def with_overrides(self, overrides: Sequence[str]) -> Resolved:
        """Return a copy of the recipe with `key=value` overrides applied.

        Args:
            overrides: Overrides as on the command line, with values in YAML.

        Raises:
            RecipeError: If the changed recipe is invalid; see `load_recipe`.
        """
        return self._apply(parse_overrides(overrides))

    def _apply(self, changes: _Changes) -> Resolved:
        stack = LayeredKeys(self.worlds, dict(self.keys), dict(self.places))
        return _built(self.name, stack, [changes]).with_notes(self.notes)

    def with_notes(self, notes: Sequence[str]) -> Resolved:
        """Return a copy of the recipe with additional notices for the user."""
        return replace(self, notes=tuple(dict.fromkeys((*notes, *self.notes))))

    def check_variables(self) -> None:
        """Check that all environment variables that the recipe names are set.

        A recipe with unset variables can be shown, but not run.

        Raises:
            RecipeError: If a variable is not set.
        """
        for key, variable in self.unset:
            raise self.error(key, describe_unset(variable))

    def to_dict(self) -> dict[str, Any]:
        """Return all values of the recipe in the form in which they are stored.

        References such as `${NAME}` are kept, and literal secrets are masked.
        """
        return mask_literals(with_references(self.recipe.model_dump(mode="json"), self.keys))[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, with the secrets that the receiving process must mask."""
        return {**self.__dict__, "secrets": known_secrets()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the fields after unpickling, and mask the secrets in this process."""
        for value, replacement in state.pop("secrets").items():
            remember_secret(value, replacement)
        self.__dict__.update(state)

    def dump(self) -> str:
        """Format the recipe as YAML with all defaults; loading it gives the same recipe."""
        written = self.to_dict()
        for dotted, _ in find_unused_keys(self.recipe):  # only defaults: a key that is set without effect is rejected
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
    """Load a recipe by built-in name, from a file, or from keys in Python.

    In Python, functions and classes can replace names of components:

        load_recipe("demo", advantage=my_function, reinforcement={"steps": 3})
        load_recipe("shop.yaml", with_=["gigpo", "entropy-branching"])
        load_recipe({"extends": "demo", "with": "dapo", "environment": {"tools": [my_tool]}}, ["seed=1"])

    Args:
        recipe: Name, file or mapping with the keys of a file. The name of a method is that method on `demo`.
        overrides: `key=value`, with values in YAML, as on the command line.
        with_: Methods to apply instead of those in `with`: built-in names or files.
        sections: Recipe keys; mappings are merged with the present ones, and None removes a key.

    Raises:
        RecipeError: If the recipe or a method does not exist, the YAML does not parse, a key is unknown, has a wrong
            type or no effect, or methods conflict; the message has file, line and the nearest valid value.
    """
    name, stack = _read(recipe)
    changes = _python_changes(name, {**sections, "with": with_} if with_ is not None else sections, {})
    resolved = _built(name, stack, [changes, parse_overrides(overrides)])
    return resolved.with_notes(recipe.notes) if isinstance(recipe, Resolved) else resolved


def load_stored_recipe(path: Path, *, moved: Mapping[str, Path] = MappingProxyType({})) -> Resolved:
    """Load the recipe that a run has stored; names of earlier releases are converted.

    Args:
        path: File `recipe.yaml` of the run.
        moved: Dotted key → new path of an input that no longer exists at its stored path.

    Raises:
        RecipeError: If the recipe is invalid; see `load_recipe`.
    """
    resolved = _built(path.stem, read(path, convert=lambda keys: relocate_paths(upgrade_recipe(keys), moved)), [])
    return replace(resolved, keys=_without_defaults(resolved.keys, Recipe))


def _without_defaults(keys: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return stored keys without values that are defaults.

    A stored recipe has all defaults. After a change, a default may have no effect, which is an error for a key that is
    set. The learning rate is kept, because its default depends on the policy.
    """
    remaining: dict[str, Any] = {}
    for key, value in keys.items():
        field = model.model_fields.get(key)
        inner = find_section(field.annotation) if field is not None else None
        if inner is not None and isinstance(value, Mapping) and inner.model_fields.keys() & value.keys():
            remaining[key] = _without_defaults(value, inner)
        elif field is None or key == "learning_rate" or field.default != value or field.default_factory is not None:
            remaining[key] = value
    return remaining


ALIASES: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    (files(__package__) / "aliases.toml").read_text("utf-8")
)
"""Recipe key → alias → component, with options if the alias implies them. A name of a whole algorithm selects only one
component here. PPO and GRPO have the same objective, the clipped surrogate; they differ in the advantage."""


def find_alias(key: str, keys: Mapping[str, Any]) -> str:
    """Return the alias that is the value of a recipe key; empty if it is no alias.

    Args:
        key: Recipe key, such as `advantage`.
        keys: Keys of the recipe.

    Returns:
        The alias in the spelling of `ALIASES`.
    """
    name = _written_name(key, keys)
    return name if name in ALIASES[key] else ""


def _written_name(key: str, keys: Mapping[str, Any]) -> str:
    """Return the name of the component that is the value of a recipe key, in lower case with underscores."""
    written = keys.get(key)
    name = written.get("name") if isinstance(written, Mapping) else written
    return name.lower().replace("-", "_") if isinstance(name, str) else ""


def replace_aliases(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replace aliases of components in the keys of a recipe by component names.

    Explicit options override those of the alias.
    """
    resolved = dict(keys)
    for key, names in ALIASES.items():
        written = keys.get(key)
        options = dict(written) if isinstance(written, Mapping) else {"name": written}
        name = options.get("name")
        meant = names.get(name.lower().replace("-", "_")) if isinstance(name, str) else None
        if meant is not None:
            resolved[key] = {**meant, **{option: value for option, value in options.items() if option != "name"}}
    return resolved


_Changes = tuple[Mapping[str, Any], Mapping[str, str]]
"""Values by dotted key, and the origin of each."""


def _read(recipe: str | Path | Mapping[str, Any] | Recipe | Resolved) -> tuple[str, LayeredKeys]:
    """Return (name, layers of keys) of a recipe in any of its forms."""
    if isinstance(recipe, Resolved):
        return recipe.name, LayeredKeys(recipe.worlds, dict(recipe.keys), dict(recipe.places))
    if isinstance(recipe, str | Path):
        return Path(recipe).stem, read(recipe)
    keys = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else to_serializable(recipe)
    parent = keys.pop("extends", None)
    keys, places = replace_deprecated_keys(keys, {})
    return "recipe", (read(str(parent)) if parent is not None else LayeredKeys()).with_layer("recipe", keys, places)


def _python_changes(name: str, sections: Mapping[str, Any], changes: Mapping[str, Any]) -> _Changes:
    """Convert changes from Python to dotted keys with origins.

    Mappings in `sections` are merged with the present ones later.
    """
    named: Mapping[str, Any] = to_serializable({**sections, **changes})
    masked, _ = mask_literals(named)
    origins = {dotted: f"{name} with {dotted}={shorten_value(value)}" for dotted, value in masked.items()}
    return {key: _Section(value) if key in sections else value for key, value in named.items()}, origins


@dataclass(frozen=True, slots=True)
class _Section:
    """Mapping of recipe keys that is merged with the present one."""

    value: Any


def _built(name: str, stack: LayeredKeys, change_sets: Sequence[_Changes]) -> Resolved:
    """Apply methods to the keys, then changes, and validate the result."""
    change_sets = [_replace_deprecated(name, *each) for each in change_sets]
    named, place, outside = stack.methods, stack.places.get("with", name), name in stack.always
    for changes, origins in change_sets:
        if "with" in changes:
            value = changes["with"]
            named, place, outside = value.value if isinstance(value, _Section) else value, origins["with"], True
    notes: list[str] = []
    if stack.always:
        (method,) = stack.always
        notes.append(f"{method} is a method; it is applied to {WORLD}: {WORLD} with={method}")
        name = WORLD if name == method else name
        named = [method, *([named] if isinstance(named, str | Mapping) else named or [])]
    laid = apply_methods(stack.keys, stack.places, named, stack.names, place)
    if laid.methods and outside:
        name = f"{name}-with-{'-'.join(each.name for each in laid.methods)}"
    keys, places = merge_keys(laid.keys, stack.above), {**laid.places, **stack.places_above}
    for changes, origins in change_sets:
        plain = {key: value for key, value in changes.items() if key != "with"}
        sections = {key: value.value for key, value in plain.items() if isinstance(value, _Section)}
        values = {**plain, **layer_sections(keys, sections)}
        keys, places = apply_changes(keys, places, values, origins)
    return _resolve(name, keys, places, stack.names, laid, (*notes, *laid.notes))


def _replace_deprecated(name: str, changes: Mapping[str, Any], origins: Mapping[str, str]) -> _Changes:
    """Replace the deprecated keys of changes."""
    plain = {key: value.value if isinstance(value, _Section) else value for key, value in changes.items()}
    sections = {key for key, value in changes.items() if isinstance(value, _Section)}
    try:
        replaced, places = replace_deprecated_keys(plain, origins, are_changes=True)
    except OptionError as error:
        raise RecipeError(f"{find_origin(origins, error.key, name)}  {error}") from None
    moved = {new for old, new in zip(plain, replaced, strict=False) if old in sections}
    return {key: _Section(value) if key in moved else value for key, value in replaced.items()}, places


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Remove null keys, which then have their defaults.

    Ablations keep theirs, because they are changes to apply later.
    """
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) and key != "ablations" else value
        for key, value in keys.items()
        if value is not None
    }


def _resolve(
    name: str, keys: Keys, places: Places, worlds: tuple[str, ...], laid: LayeredRecipe, notes: tuple[str, ...]
) -> Resolved:
    for wrong in (*find_renamed_keys(keys), *find_unknown_nulls(Recipe, keys)):
        raise RecipeError(f"{find_origin(places, wrong.key, name)}  {wrong}")
    if keys.get("evaluation", ...) is None:
        problem = "null does not disable evaluations, which every run has; the shortest is evaluation.episodes=1"
        raise RecipeError(f"{find_origin(places, 'evaluation', name)}  evaluation: {problem}")
    keys = resolve_paths(_without_nulls(keys), None)
    notes = (*notes, *list_deprecated_keys(places), *_partial_methods(keys, laid))
    keys, fitted = _fit_minibatches(replace_aliases(keys), places, laid)
    notes = (*notes, *fitted)
    try:
        values, unset = expand_variables(keys)
    except OptionError as error:
        raise RecipeError(f"{find_origin(places, error.key, name)}  {error}") from None
    values = replace_aliases(resolve_paths(values, None))
    _, masked = mask_literals(keys)
    secret = tuple(
        f"{find_origin(places, key, name)}  {key}: a secret in the recipe, masked in files, reports and trackers; "
        f"write ${{NAME}} here and export NAME"
        for key in masked
    )
    for dotted, problem in _unsayable(keys, ""):
        raise RecipeError(f"{find_origin(places, dotted, name)}  {dotted}: {problem}")
    for method, dotted, wanted in laid.list_unmet_keys(keys):
        raise RecipeError(f"{name}: {method.name} requires {dotted}: {wanted}")
    try:
        recipe = Recipe.model_validate(values)
    except OptionError as error:
        for key, variable in unset:
            if key == error.key:
                raise RecipeError(f"{find_origin(places, key, name)}  {key}: {describe_unset(variable)}") from None
        raise RecipeError(f"{find_origin(places, error.key, name)}  {error}") from None
    resolved = Resolved(recipe, name, keys, places, worlds, (*notes, *secret, *list_warnings(recipe)), tuple(unset))
    for key, reason in find_unused_keys(recipe):
        if _is_set(keys, key):
            raise resolved.error(key, f"has no effect: {reason}")
    for key, problem in find_contradictions(recipe):
        raise resolved.error(key, problem)
    return resolved


def _fit_minibatches(keys: Keys, places: Places, laid: LayeredRecipe) -> tuple[Keys, list[str]]:
    """Reduce a method's number of minibatches to the number of groups per step."""
    key, stage = "reinforcement.minibatches", keys.get("reinforcement")
    method = next((each.name for each in laid.methods if each.places.get(key) == places.get(key, "")), None)
    if method is None or not isinstance(stage, Mapping):
        return keys, []
    groups, minibatches = stage.get("tasks_per_step", 16), stage.get("minibatches")
    if not isinstance(groups, int) or not isinstance(minibatches, int) or not 0 < groups < minibatches:
        return keys, []
    note = f"{method}: {key} is {groups}, not {minibatches}: a step has {groups} groups (reinforcement.tasks_per_step)"
    return {**keys, "reinforcement": {**stage, "minibatches": groups}}, [note]


def _partial_methods(keys: Mapping[str, Any], laid: LayeredRecipe) -> Iterator[str]:
    """Yield a note if the advantage estimator or the objective is only one key of a method."""
    objective = "" if find_alias("objective", keys) else _written_name("objective", keys)
    parts = (("advantage", "estimator", find_alias("advantage", keys)), ("objective", "objective", objective))
    for key, kind, name in parts:
        method = name.replace("_", "-").replace("++", "-plus-plus")
        if method not in built_in_methods() or method in (each.name for each in laid.methods):
            continue
        own = read_method(method).keys
        more = [other for other in own if other not in (key, "title", "paper") and other not in keys and own[other]]
        if more:
            yield f"{key}: {name} is the {kind} of a method that also sets {', '.join(more)}; use with={method}"


def _unsayable(value: Any, dotted: str) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for values that no recipe file can contain.

    These are non-finite numbers and lone surrogates.
    """
    if isinstance(value, float) and not math.isfinite(value) and dotted not in _WITHOUT_BOUND:
        yield dotted, f"a finite number is expected, got {value}"
    elif isinstance(value, str) and _HALF.search(value):
        yield dotted, "it contains a lone surrogate, which is not valid text"
    elif isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            below = f"{dotted}.{key}" if dotted else str(key)
            yield from _unsayable(str(key), below)
            yield from _unsayable(inner, below)


def _is_set(keys: Mapping[str, Any], dotted: str) -> bool:
    """Return whether a dotted key has a value other than null."""
    node: Any = keys
    for part in dotted.split("."):
        if not isinstance(node, Mapping) or node.get(part) is None:
            return False
        node = node[part]
    return True


def _compact(value: Any, *, keep_none: bool) -> Any:
    """Convert sections to YAML flow style."""
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
    """Quote a text with special characters of YAML."""
    return DoubleQuotedScalarString(value) if isinstance(value, str) and _ODD.search(value) else value
