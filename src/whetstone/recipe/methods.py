"""Methods of papers, applied as layers of keys over the recipe of any task.

    with: [gigpo, entropy-branching]    keys of the recipe < methods < files that extend it, command line, Python

Note:
    If two methods set a key to different values, one of them would be lost silently. This is an error unless one has
    priority: `with: [gigpo, {dapo: wins}]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whetstone.errors import RecipeError
from whetstone.recipe.error_messages import find_settings_models
from whetstone.recipe.loader import (
    Keys,
    Places,
    find_origin,
    merge_keys,
    names_differ,
    read_document,
    set_key,
    shorten_value,
)
from whetstone.recipe.resolve_paths import resolve_paths
from whetstone.recipe.settings import Recipe

_DESCRIBING = ("title", "paper", "ablations")
"""Keys that describe a method; the values of several methods are merged."""
_OF_A_WORLD = ("extends", "with", "tasks", "seed")
_WINS = "wins"
_THE_WORLDS = "world"
"""Placeholder in a method's reward for the reward of the recipe."""


@dataclass(frozen=True, slots=True)
class Method:
    """Method of a paper: recipe keys, loaded from a built-in or custom file.

    `read_method` creates it.
    """

    name: str
    """Name of the method in `with`."""
    keys: Keys
    """Recipe keys that the method sets."""
    places: Places
    """Origin of each key."""
    adds: Mapping[str, Any]
    """Dotted key → value that is added to the recipe's value: numbers are summed, lists are concatenated."""
    needs: Mapping[str, str]
    """Dotted key → description of the required value."""
    wins: bool = False
    """Whether the keys have priority over those of the other methods."""


@dataclass(frozen=True, slots=True)
class LayeredRecipe:
    """Keys of a recipe after its methods are applied."""

    keys: Keys
    """Nested keys with the methods applied."""
    places: Places
    """Origin of each key."""
    methods: tuple[Method, ...]
    """Applied methods, in order."""
    notes: tuple[str, ...] = ()
    """Warnings about keys of a file that a method named in the same file overrides."""

    def list_unmet_keys(self, keys: Mapping[str, Any]) -> Iterator[tuple[Method, str, str]]:
        """Yield (method, key, description) for each key that a method requires and that is not set.

        Args:
            keys: Final keys of the recipe.
        """
        for method in self.methods:
            for dotted, wanted in method.needs.items():
                if get_value(keys, dotted) in (None, [], {}, ""):
                    yield method, dotted, wanted


def apply_methods(
    keys: Keys, places: Places, named: Any, worlds: Sequence[str] = (), place: str = "with"
) -> LayeredRecipe:
    """Apply methods to the keys of a recipe.

    Args:
        keys: Keys of the recipe.
        places: File and line of each key.
        named: Value of `with`: `dapo`, `dapo, gigpo`, `[gigpo, {dapo: wins}]`, built-in names or files; null: none.
        worlds: Names of the recipe and of those it extends, for the `on` section of a method.
        place: File and line of `with`, for messages.

    Raises:
        RecipeError: If a method does not exist or has keys that only a recipe can have, or two methods conflict.
    """
    methods = tuple(read_method(name, worlds, wins=wins) for name, wins in _list_methods(named, place))
    if not methods:
        return LayeredRecipe(keys, places, ())
    for number, method in enumerate(methods):
        for other in methods[:number]:
            _check_together(other, method, place)
    in_order = sorted(methods, key=lambda each: each.wins)  # winners last
    together = reduce(_merge, (each.keys for each in in_order))
    file = place.partition(":")[0]
    replaced = _find_overridden(keys, places, together, methods, file) if ":" in place else ()
    combined = merge_keys(keys, _insert_reward(together, keys.get("reward")))
    combined |= _merge_descriptions(methods)
    known = dict(places)
    for method in in_order:
        known |= {dotted: line for dotted, line in method.places.items() if not dotted.startswith("adds")}
        for dotted, more in method.adds.items():
            combined = _add(combined, dotted, more, method)
            known[dotted] = f"{known.get(dotted, 'default')} + {find_origin(method.places, 'adds', method.name)}"
    for key in _DESCRIBING:
        described = [each.places[key] for each in methods if key in each.places]
        known[key] = ", ".join(described or [each.name for each in methods])
    return LayeredRecipe(combined, known, methods, tuple(replaced))


def read_method(name: str, worlds: Sequence[str] = (), *, wins: bool = False) -> Method:
    """Load a built-in method, or a method from a file.

    Args:
        name: Built-in name or file.
        worlds: Names of the recipe and of those it extends, for the `on` section of the method.
        wins: Whether the method has priority over others.

    Raises:
        RecipeError: If the method does not exist, or has keys that only a recipe can have.
    """
    document = read_document(name, of_method=True)
    keys, places = dict(document.keys), document.places
    for key in _OF_A_WORLD:
        if key in keys:
            problem = "not allowed in a method; set it in the recipe"
            raise RecipeError(f"{find_origin(places, key, document.label)}  {key}: {problem}")
    parts = {}
    for key in ("adds", "needs", "on"):
        parts[key] = keys.pop(key, None) or {}
        if not isinstance(parts[key], Mapping):
            raise RecipeError(
                f"{find_origin(places, key, document.label)}  {key}: a mapping, got {shorten_value(parts[key])}"
            )
    places = {dotted: line for dotted, line in places.items() if dotted.partition(".")[0] not in ("needs", "on")}
    for world in reversed(worlds):
        own = parts["on"].get(world) or {}
        if not isinstance(own, Mapping):
            raise RecipeError(f"{document.label}  on.{world}: keys of a recipe, got {shorten_value(own)}")
        keys = merge_keys(keys, own)
        own_places = {key.removeprefix(f"on.{world}."): line for key, line in document.places.items()}
        places |= {key: line for key, line in own_places.items() if key.partition(".")[0] in own}
    keys = resolve_paths(keys, document.folder)
    needs = {str(key): str(wanted) for key, wanted in parts["needs"].items()}
    return Method(Path(name).stem, keys, places, parts["adds"], needs, wins)


def _list_methods(named: Any, place: str) -> list[tuple[str, bool]]:
    """Return (name, whether it has priority) of each method in `with`."""
    if isinstance(named, str):
        named = [each.strip() for each in named.split(",") if each.strip()]
    methods: list[tuple[str, bool]] = []
    for each in named if isinstance(named, list) else [] if named is None else [named]:
        if isinstance(each, Mapping) and len(each) == 1 and next(iter(each.values())) == _WINS:
            methods.append((str(next(iter(each))), True))
        elif isinstance(each, str):
            methods.append((each, False))
        else:
            problem = "a list of methods is expected, such as [gigpo, {dapo: wins}]"
            raise RecipeError(f"{place}  with: {problem}; got {shorten_value(each)}")
    names = [name for name, _ in methods]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f'{place}  with: "{name}" is listed twice')
    return methods


# ------------------------------------------------------------ combination of methods


def _check_together(one: Method, other: Method, place: str) -> None:
    for key, first, second in _differences(_setting(one.keys), _setting(other.keys), ""):
        if one.wins != other.wins:
            return
        both = f"{one.name} and {other.name} both set {key} ({shorten_value(first)}, {shorten_value(second)})"
        if one.wins:
            raise RecipeError(f"{place}  with: {both}, and both have priority (`wins`); remove one `wins`")
        remedy = f"remove one, or set the priority: with: [{one.name}, {{{other.name}: wins}}]"
        raise RecipeError(f"{place}  with: {both}; {remedy}")


def _setting(keys: Keys) -> Keys:
    return {key: value for key, value in keys.items() if key not in _DESCRIBING}


def _differences(one: Any, other: Any, dotted: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, first value, second value) of keys that both mappings set differently."""
    one, other = _as_parts(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if names_differ(one, other) and "name" in one and "name" in other:
            yield dotted, one["name"], other["name"]
            return
        for key in one:
            if key in other:
                yield from _differences(one[key], other[key], f"{dotted}.{key}" if dotted else key)
    elif _are_parts(one) and _are_parts(other):  # compare lists of components by name
        first, second = _by_name(one), _by_name(other)
        for name in first:
            if name in second and first[name] != second[name]:
                yield f"{dotted}: {name}", first[name], second[name]
    elif one != other:
        yield dotted, one, other


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> Keys:
    """Merge the keys of two methods; the second has priority.

    Lists of components are merged by name, in order.
    """
    combined = dict(one)
    for key, value in other.items():
        below, top = _as_parts(combined.get(key), value)
        if isinstance(below, Mapping) and isinstance(top, Mapping) and not names_differ(below, top):
            combined[key] = _merge(below, top)
        elif key in combined and _are_parts(below) and _are_parts(top):
            combined[key] = [*({**_by_name(below), **_by_name(top)}).values()]
        else:
            combined[key] = value
    return combined


def _as_parts(one: Any, other: Any) -> tuple[Any, Any]:
    """Expand the short form of a component if only one value has it: `clipped` → `{name: clipped}`."""
    if isinstance(one, str) and isinstance(other, Mapping):
        return {"mode" if "mode" in other else "name": one}, other
    if isinstance(other, str) and isinstance(one, Mapping):
        return one, {"mode" if "mode" in one else "name": other}
    return one, other


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) or (isinstance(each, Mapping) and "name" in each) for each in value
    )


def _by_name(parts: Sequence[Any]) -> dict[str, Any]:
    return {each if isinstance(each, str) else str(each["name"]): each for each in parts}


# ------------------------------------------------------------ methods applied to a recipe


def _merge_descriptions(methods: Sequence[Method]) -> Keys:
    """Merge titles, papers and ablations of the methods.

    Ablations of the recipe are dropped.
    """
    values = {key: [each.keys[key] for each in methods if each.keys.get(key)] for key in _DESCRIBING}
    ablations: Keys = {}
    for compared in values["ablations"]:
        ablations = merge_keys(ablations, compared)
    return {"title": "; ".join(values["title"]), "paper": ", ".join(values["paper"]), "ablations": ablations or None}


def _insert_reward(keys: Keys, reward: Any) -> Keys:
    """Insert the recipe's reward into the method's reward, if that refers to it."""
    own = keys.get("reward")
    return {**keys, "reward": _build_terms(own, reward)} if isinstance(own, Mapping) else keys


def _build_terms(own: Mapping[str, Any], reward: Any) -> Keys:
    options = {option: reward if value == _THE_WORLDS else value for option, value in own.items()}
    return {option: _build_terms(value, reward) if option == "terms" else value for option, value in options.items()}


def _find_overridden(keys: Keys, places: Places, together: Keys, methods: Sequence[Method], file: str) -> Iterator[str]:
    """Yield a warning for each key of a file that a method named in that file overrides."""
    for dotted, own, new in list(_differences(_setting(keys), _setting(together), "")):
        place = find_origin(places, dotted, "")
        if place.partition(":")[0] == file:
            whose = ", ".join(each.name for each in methods if get_value(each.keys, dotted) is not None)
            yield f"{place}  {dotted}: {whose} overrides it: {shorten_value(new)} instead of {shorten_value(own)}"


def _add(keys: Keys, dotted: str, more: Any, method: Method) -> Keys:
    """Add a value of a method to the recipe's value or to its default.

    Nothing is added to a section that the recipe does not have.
    """
    own = get_value(keys, dotted)
    if own is None:
        own = _default_at(dotted)
    section = dotted.rpartition(".")[0]
    where = f"{find_origin(method.places, f'adds.{dotted}', method.name)}  adds.{dotted}"
    if isinstance(more, list):
        if not isinstance(own, list):
            raise RecipeError(
                f"{method.name} adds {', '.join(map(str, more))} to {dotted}, and the recipe has no list there"
            )
        new: Any = [*own, *(each for each in more if each not in own)]
    elif isinstance(more, int | float) and not isinstance(more, bool):
        if get_value(keys, section) is None and section != "environment":
            return keys
        if not isinstance(own, int | float):
            raise RecipeError(f"{where}: {more} cannot be added to {shorten_value(own)}")
        new = own + more
    else:
        raise RecipeError(f"{where}: a number or a list, got {shorten_value(more)}")
    changed = dict(keys)
    set_key(changed, dotted, new)
    return changed


def _default_at(dotted: str) -> Any:
    """Return the default value of a dotted recipe key."""
    model: type[BaseModel] | None = Recipe
    value: Any = None
    for part in dotted.split("."):
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        value = field.get_default(call_default_factory=True)
        model = next(find_settings_models(field.annotation), None)
    return value


def get_value(keys: Any, dotted: str) -> Any:
    """Return the value of a dotted key, with list indices; None if the key is not set."""
    for part in dotted.split(".") if dotted else ():
        if isinstance(keys, Mapping):
            keys = keys.get(part)
        elif isinstance(keys, list) and part.isdecimal() and int(part) < len(keys):
            keys = keys[int(part)]
        else:
            return None
    return keys
