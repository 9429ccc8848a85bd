"""How do files and `key=value` overrides become one mapping of keys? And where was each key written?

Easy to get wrong: YAML reads `1e-3` as text and `on` as true in its old version; recipes are YAML 1.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap

from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import search_also
from whetstone.recipe.locating import is_file, located
from whetstone.recipe.variables import mask_literals
from whetstone.recipe.yaml_text import yaml_document
from whetstone.renames import RECIPES

_MOST_BYTES = 1 << 20
Keys = dict[str, Any]
"""What was written, nested as in the file."""
Places = dict[str, str]
"""Dotted key → `file:line`, or the override it came from."""
_MOST_NODES, _MOST_DEPTH = 100_000, 64
"""Values in a recipe, and how deep; aliases may hold one another."""


@dataclass(frozen=True, slots=True)
class Document:
    """One file of keys."""

    label: str
    """Its name in messages."""
    keys: Keys
    places: Places
    folder: Path | None
    """Where it is; None: it came with Whetstone."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The keys of a recipe as its files have them, with methods that are still to be laid between them."""

    names: tuple[str, ...] = ()
    """Of the recipe, of what it extends, of what that extends, ..."""
    keys: Keys = field(default_factory=dict)
    """Of the file that names methods, over those it extends."""
    places: Places = field(default_factory=dict)
    methods: Any = None
    """What `with` says."""
    always: tuple[str, ...] = ()
    """Methods that were named where a recipe goes, so that they are there whatever `with` says."""
    above: Keys = field(default_factory=dict)
    """Of files that extend that one, over it and its methods."""
    places_above: Places = field(default_factory=dict)

    def extended(self, name: str, keys: Mapping[str, Any], places: Mapping[str, str]) -> Stack:
        """With keys that lie over all of this; a `with` among them takes the place of one below."""
        own, names = dict(keys), (name, *self.names)
        if "with" not in own and (self.methods is not None or self.always):
            above, there = merged(self.above, own), {**self.places_above, **places}
            return Stack(names, self.keys, self.places, self.methods, self.always, above, there)
        methods = own.pop("with", None)
        below, known = merged(merged(self.keys, self.above), own), {**self.places, **self.places_above, **places}
        return Stack(names, below, known, methods, self.always)


WORLD = "demo"
"""What a method is tried on where it is named in a recipe's place."""


def built_in_recipes() -> list[str]:
    """The names of the recipes that come with Whetstone: tasks and worlds."""
    return _names_in("recipes")


def built_in_methods() -> list[str]:
    """The names of the methods that come with Whetstone: layers over any recipe."""
    return _names_in("recipes/methods")


def _names_in(folder: str) -> list[str]:
    entries = (resources.files("whetstone") / folder).iterdir()
    return sorted(Path(entry.name).stem for entry in entries if entry.name.endswith(".yaml"))


def read(name: str | Path, seen: tuple[str, ...] = (), *, convert: Callable[[Keys], Keys] | None = None) -> Stack:
    """Return the keys of a recipe on top of those it extends, and where each was written.

    Args:
        convert: Applied to the keys of the file, such as `upgrade_recipe` for the recipe of a run.
    """
    if not is_file(Path(name)) and str(name) in built_in_methods():
        base = read(WORLD, seen)
        return replace(base, always=(str(name),))
    try:
        document = read_document(name)
    except RecipeError as error:
        raise RecipeError(f"{seen[-1]}  extends: {error}" if seen else str(error)) from None
    if document.label in seen:
        raise RecipeError(f"{document.label}: extends itself: {' → '.join((*seen, document.label))}")
    keys, folder = convert(document.keys) if convert is not None else document.keys, document.folder
    parent = keys.pop("extends", None)
    keys = located(keys, folder)
    if "with" in keys:
        keys["with"] = _beside(keys["with"], folder)
    if parent is None:
        base = Stack()
    else:
        beside = (folder or Path()) / str(parent)
        base = read(beside if is_file(beside) else str(parent), (*seen, document.label))
    return base.extended(Path(name).stem, keys, document.places)


def read_document(name: str | Path, *, of_method: bool = False) -> Document:
    """One file's own keys.

    Args:
        of_method: Whether a built-in name is a method's.

    Raises:
        RecipeError: There is no such file, or it is no mapping.
    """
    label, text = _text(name, of_method=of_method)
    document = yaml_document(text, label)
    if not isinstance(document, CommentedMap):
        raise RecipeError(f"{label}:1  a {'method' if of_method else 'recipe'} is a mapping of keys to values")
    places = {dotted: f"{label}:{line}" for dotted, line in _lines(document, "", 0)}
    folder = Path(name).resolve().parent if is_file(Path(name)) else None
    if folder is not None:
        search_also(folder)
    return Document(label, _plain(document), places, folder)


def _beside(methods: Any, folder: Path | None) -> Any:
    """What `with` says, with files beside the recipe named whole."""
    if isinstance(methods, list):
        return [_beside(each, folder) for each in methods]
    if isinstance(methods, Mapping):
        return {_beside(name, folder): how for name, how in methods.items()}
    if isinstance(methods, str) and folder is not None and is_file(folder / methods):
        return str(folder / methods)
    return methods


def _text(name: str | Path, *, of_method: bool) -> tuple[str, str]:
    path = Path(name)
    if is_file(path):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise RecipeError(f"{path.name}: longer than {_MOST_BYTES} bytes, which no recipe is")
            return path.name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = path.read_bytes()[: error.start].count(b"\n") + 1
            raise RecipeError(f"{path.name}:{line}  is not UTF-8") from None
    kind = "method" if of_method else "recipe"
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        named = path.parent / f"{path.name}.yaml"
        near = f'; did you mean "{named}"?' if is_file(named) else ""
        raise RecipeError(f"{path}: no such {kind} file{near}")
    known = built_in_methods() if of_method else built_in_recipes()
    if str(name) not in known:
        if of_method and str(name) in built_in_recipes():
            raise RecipeError(f'"{name}" is a recipe, not a method; `whetstone recipes` lists methods')
        if not of_method and str(name) in RECIPES:
            raise RecipeError(f'recipe "{name}": renamed to "{RECIPES[str(name)]}"')
        near = did_you_mean(str(name), known if of_method else [*known, *built_in_methods()])
        raise RecipeError(f'no {kind} named "{name}"{near}')
    file = f"methods/{name}.yaml" if of_method else f"{name}.yaml"
    return file, (resources.files("whetstone") / "recipes" / file).read_text(encoding="utf-8")


def _lines(node: CommentedMap, prefix: str, around: int) -> Iterator[tuple[str, int]]:
    written = node.lc.data or {}  # a key that came by `<<` is written where it is merged
    for key, value in node.items():
        line = written[key][0] + 1 if key in written else around
        yield f"{prefix}{key}", line
        if isinstance(value, CommentedMap):
            yield from _lines(value, f"{prefix}{key}.", line)


def _plain(document: Any) -> Any:
    """Plain values: ruamel's own remember how they were written.

    Raises:
        RecipeError: It holds itself, or by its aliases more than anybody means.
    """
    left = _MOST_NODES

    def plain(node: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MOST_DEPTH:
            raise RecipeError("it holds itself, or far too much")
        if isinstance(node, Mapping):
            return {str(key): plain(value, depth + 1) for key, value in node.items()}
        if isinstance(node, list):
            return [plain(value, depth + 1) for value in node]
        if isinstance(node, bool) or node is None:
            return node
        return next((kind(node) for kind in (int, float) if isinstance(node, kind)), str(node))

    return plain(document, 0)


def yaml_value(text: str, override: str) -> Any:
    """What a text is as YAML; `override` is what it stood in, for messages.

    Raises:
        RecipeError: It is no YAML.
    """
    try:
        return _plain(yaml_document(text, override, plain=True))
    except RecipeError:
        raise RecipeError(f"{shortened(override)[1:-1]}: the value is not YAML") from None


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, mappings merged. A part under another name starts with options of its own."""
    found = dict(base)
    for key, value in top.items():
        below = found.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not renamed(below, value):
            found[key] = merged(below, value)
        else:
            found[key] = value
    return found


def layered(keys: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """What each of `sections` comes to over the keys there are, as in a file that extends another."""
    return {key: value for key, value in merged(keys, sections).items() if key in sections}


def renamed(base: Mapping[str, Any], top: Mapping[str, Any]) -> bool:
    """Whether they name different parts."""
    return any(name in top and base.get(name) != top[name] for name in ("name", "source"))


def set_key(keys: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key in place; mappings on the way are copied."""
    *path, last = dotted.split(".")
    for step in path:
        below = keys.get(step)
        if isinstance(below, str):  # a part by name alone: `objective: clipped`
            below = {"name": below}
        keys[step] = dict(below) if isinstance(below, Mapping) else {}
        keys = keys[step]
    keys[last] = value


def overrides_read(overrides: Sequence[str]) -> tuple[Keys, Places]:
    """(dotted key → value, dotted key → what was typed) of `key=value` overrides, values in YAML.

    Raises:
        RecipeError: One is not written so.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted:
            raise RecipeError(f"{override}: an override is written key=value, such as reinforcement.steps=30")
        changes[dotted] = yaml_value(text, override)
    masked, _ = mask_literals(changes)
    return changes, {dotted: f"command line ({dotted}={shortened(value)})" for dotted, value in masked.items()}


def changed(
    keys: Mapping[str, Any], places: Mapping[str, str], changes: Mapping[str, Any], said: Mapping[str, str]
) -> tuple[Keys, Places]:
    """Keys and their places with dotted keys set, each said to be written where `said` has it."""
    new_keys, new_places = copy.deepcopy(dict(keys)), dict(places)
    for dotted, value in changes.items():
        set_key(new_keys, dotted, value)
        new_places = {k: v for k, v in new_places.items() if k != dotted and not k.startswith(f"{dotted}.")}
        new_places[dotted] = said[dotted]
    return new_keys, new_places


def place_of(places: Mapping[str, str], key: str, name: str) -> str:
    """Where `key`, a key below it, or else the nearest around it, was written; `name` where nowhere."""
    below = next((place for written, place in places.items() if written.startswith(f"{key}.")), None)
    if below is not None and key not in places:
        return below
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return name


def shortened(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
