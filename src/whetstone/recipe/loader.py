"""Loading and merging of recipe files and `key=value` overrides.

The origin of each key is stored with its value.

Note:
    YAML 1.1 reads `1e-3` as text and `on` as true. Recipes are YAML 1.2.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap

from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import OptionError, add_search_path
from whetstone.recipe.resolve_paths import is_file, resolve_paths
from whetstone.recipe.upgrade import DEPRECATED_MARK, replace_deprecated_keys
from whetstone.recipe.variables import mask_literals
from whetstone.recipe.yaml_text import yaml_document
from whetstone.renames import RECIPES

_MOST_BYTES = 1 << 20
Keys = dict[str, Any]
"""Recipe keys, nested as in the file."""
Places = dict[str, str]
"""Dotted key → `file:line`, or the override that set it."""
_MOST_NODES, _MOST_DEPTH = 100_000, 64
"""Maximum number of values, and maximum depth, with aliases expanded."""


@dataclass(frozen=True, slots=True)
class Document:
    """Keys of one recipe or method file."""

    label: str
    """Name of the file in error messages."""
    keys: Keys
    """Nested keys of the file."""
    places: Places
    """Dotted key → `file:line`."""
    folder: Path | None
    """Folder of the file; None for a built-in file."""


@dataclass(frozen=True, slots=True)
class LayeredKeys:
    """Merged keys of a recipe and the files that it extends, before methods are applied.

    Methods apply between `keys` and `above`.
    """

    names: tuple[str, ...] = ()
    """Names of the recipe, of the recipe that it extends, and so on."""
    keys: Keys = field(default_factory=dict)
    """Keys of the file that has `with`, merged with the files that it extends; without `with`, of all files."""
    places: Places = field(default_factory=dict)
    """Origin of each key in `keys`."""
    methods: Any = None
    """Value of `with`."""
    always: tuple[str, ...] = ()
    """Methods that were named instead of a recipe; they apply in addition to `with`."""
    above: Keys = field(default_factory=dict)
    """Keys of files that extend the file with `with`; they override the methods."""
    places_above: Places = field(default_factory=dict)
    """Origin of each key in `above`."""

    def with_layer(self, name: str, keys: Mapping[str, Any], places: Mapping[str, str]) -> LayeredKeys:
        """Return the layers with the keys of another file on top.

        A `with` in the file replaces the methods so far.

        Args:
            name: Name of the file.
            keys: Keys of the file.
            places: Origin of each key.
        """
        own, names = dict(keys), (name, *self.names)
        if "with" not in own and (self.methods is not None or self.always):
            above, places_above = merge_keys(self.above, own), {**self.places_above, **places}
            return LayeredKeys(names, self.keys, self.places, self.methods, self.always, above, places_above)
        methods = own.pop("with", None)
        below, known = (
            merge_keys(merge_keys(self.keys, self.above), own),
            {**self.places, **self.places_above, **places},
        )
        return LayeredKeys(names, below, known, methods, self.always)


WORLD = "demo"
"""Recipe to which a method is applied if the method is named instead of a recipe."""


def built_in_recipes() -> list[str]:
    """Return the names of the built-in recipes, which have tasks and an environment."""
    return _names_in("recipes")


def built_in_methods() -> list[str]:
    """Return the names of the built-in methods, which apply to any recipe."""
    return _names_in("recipes/methods")


def _names_in(folder: str) -> list[str]:
    entries = (resources.files("whetstone") / folder).iterdir()
    return sorted(Path(entry.name).stem for entry in entries if entry.name.endswith(".yaml"))


def read(name: str | Path, seen: tuple[str, ...] = (), *, convert: Callable[[Keys], Keys] | None = None) -> LayeredKeys:
    """Load the keys of a recipe and of the recipes that it extends.

    Args:
        name: Built-in name or file.
        seen: Files that extend this one, to detect cycles.
        convert: Function that is applied to the keys of the file, such as `upgrade_recipe` for the recipe of a run.

    Raises:
        RecipeError: If a file does not exist, does not parse, or extends itself.
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
    keys, folder, places = document.keys, document.folder, document.places
    if convert is not None:  # no notices: the user did not write the stored recipe
        keys = convert(keys)
        places = {key: place for key, place in places.items() if not key.startswith(DEPRECATED_MARK)}
    parent = keys.pop("extends", None)
    keys = resolve_paths(keys, folder)
    if "with" in keys:
        keys["with"] = _resolve_methods(keys["with"], folder)
    if parent is None:
        base = LayeredKeys()
    else:
        sibling = (folder or Path()) / str(parent)
        base = read(sibling if is_file(sibling) else str(parent), (*seen, document.label))
    return base.with_layer(Path(name).stem, keys, places)


def read_document(name: str | Path, *, of_method: bool = False) -> Document:
    """Load the keys of one file, with the line of each key.

    Args:
        name: Built-in name or file.
        of_method: Whether a built-in name is that of a method.

    Raises:
        RecipeError: If the file does not exist, or is not a mapping.
    """
    label, text = _text(name, of_method=of_method)
    document = yaml_document(text, label)
    if not isinstance(document, CommentedMap):
        raise RecipeError(f"{label}:1  a {'method' if of_method else 'recipe'} is a mapping of keys to values")
    places = {dotted: f"{label}:{line}" for dotted, line in _lines(document, "", 0)}
    try:
        keys, places = replace_deprecated_keys(_plain(document), places)
    except OptionError as error:
        raise RecipeError(f"{places[error.key]}  {error}") from None
    folder = Path(name).resolve().parent if is_file(Path(name)) else None
    if folder is not None:
        add_search_path(folder)
    return Document(label, keys, places, folder)


def _resolve_methods(methods: Any, folder: Path | None) -> Any:
    """Return the value of `with`, in which files relative to the recipe have full paths."""
    if isinstance(methods, list):
        return [_resolve_methods(each, folder) for each in methods]
    if isinstance(methods, Mapping):
        return {_resolve_methods(name, folder): how for name, how in methods.items()}
    if isinstance(methods, str) and folder is not None and is_file(folder / methods):
        return str(folder / methods)
    return methods


def _text(name: str | Path, *, of_method: bool) -> tuple[str, str]:
    path = Path(name)
    if is_file(path):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise RecipeError(f"{path.name}: longer than {_MOST_BYTES} bytes, the maximum of a recipe")
            return path.name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = path.read_bytes()[: error.start].count(b"\n") + 1
            raise RecipeError(f"{path.name}:{line}  is not UTF-8") from None
    kind = "method" if of_method else "recipe"
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise RecipeError(f"{path}: no such {kind} file{_similar_file(path)}")
    known = built_in_methods() if of_method else built_in_recipes()
    if str(name) not in known:
        if of_method and str(name) in built_in_recipes():
            raise RecipeError(f'"{name}" is a recipe, not a method; `whetstone recipes` lists methods')
        if not of_method and str(name) in RECIPES:
            raise RecipeError(f'recipe "{name}": renamed to "{RECIPES[str(name)]}"')
        if is_file(Path(f"{name}.yaml")):
            raise RecipeError(f'no {kind} named "{name}"; did you mean "{name}.yaml"?')
        near = did_you_mean(str(name), known if of_method else [*known, *built_in_methods()])
        raise RecipeError(f'no {kind} named "{name}"{near}')
    file = f"methods/{name}.yaml" if of_method else f"{name}.yaml"
    return file, (resources.files("whetstone") / "recipes" / file).read_text(encoding="utf-8")


def _similar_file(path: Path) -> str:
    """Format the end of the message about a missing file: the YAML file in its folder with the most similar name."""
    try:
        files = [each.name for pattern in ("*.yaml", "*.yml") for each in path.parent.glob(pattern)]
    except (OSError, ValueError):
        return ""
    with_ending = [f"{path.name}.yaml"] if f"{path.name}.yaml" in files else []
    similar = with_ending or difflib.get_close_matches(path.name, files, n=1)
    return f'; did you mean "{path.parent / similar[0]}"?' if similar else ""


def _lines(node: CommentedMap, prefix: str, around: int) -> Iterator[tuple[str, int]]:
    written = node.lc.data or {}  # a key from a merge (`<<`) has the line of the merge
    for key, value in node.items():
        line = written[key][0] + 1 if key in written else around
        yield f"{prefix}{key}", line
        if isinstance(value, CommentedMap):
            yield from _lines(value, f"{prefix}{key}.", line)


def _plain(document: Any) -> Any:
    """Convert values of ruamel.yaml, which store their formatting, to plain values.

    Raises:
        RecipeError: If the document contains itself, or is too large with its aliases expanded.
    """
    left = _MOST_NODES

    def plain(node: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MOST_DEPTH:
            raise RecipeError("it contains itself, or is too large")
        if isinstance(node, Mapping):
            return {str(key): plain(value, depth + 1) for key, value in node.items()}
        if isinstance(node, list):
            return [plain(value, depth + 1) for value in node]
        if isinstance(node, bool) or node is None:
            return node
        return next((kind(node) for kind in (int, float) if isinstance(node, kind)), str(node))

    return plain(document, 0)


def yaml_value(text: str, override: str) -> Any:
    """Parse a YAML value of an override.

    Args:
        text: Value as YAML.
        override: Whole override `KEY=VALUE`, for the error message.

    Raises:
        RecipeError: If the text is not YAML.
    """
    try:
        return _plain(yaml_document(text, override, plain=True))
    except RecipeError:
        key = shorten_value(override.partition("=")[0])[1:-1]
        message = f"{key}: the value is not YAML, got {shorten_value(text)}"
        raise RecipeError(f"{message}; {_suggest_quotes(key, text)}") from None


def _suggest_quotes(key: str, text: str) -> str:
    """Format the remedy for an override whose value is not YAML.

    A shell divides an argument without quotes at spaces, so that brackets are not closed.

    >>> _suggest_quotes("policy.lora", "{rank:")
    "quote the whole argument in the shell: 'policy.lora={rank: …}'"
    """
    ends = {"{": "}", "[": "]"}
    is_divided = any(text.count(start) > text.count(end) for start, end in ends.items())
    if is_divided and text[0] in ends:
        return f"quote the whole argument in the shell: '{key}={shorten_value(text)[1:-1]} …{ends[text[0]]}'"
    return f"""quote a text with special characters: '{key}="TEXT"'"""


def merge_keys(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the mapping `top` over `base`, recursively.

    A component with another name in `top` does not inherit the options of the one in `base`.
    """
    combined = dict(base)
    for key, value in top.items():
        below = combined.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not names_differ(below, value):
            combined[key] = merge_keys(below, value)
        else:
            combined[key] = value
    return combined


def layer_sections(keys: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Merge sections over the keys of a recipe, and return the merged sections.

    The result is the same as for a file that extends the recipe.
    """
    return {key: value for key, value in merge_keys(keys, sections).items() if key in sections}


def names_differ(base: Mapping[str, Any], top: Mapping[str, Any]) -> bool:
    """Return whether two mappings configure different components."""
    return any(name in top and base.get(name) != top[name] for name in ("name", "source"))


def set_key(keys: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key in place; mappings on the way are copied first."""
    *path, last = dotted.split(".")
    for step in path:
        below = keys.get(step)
        if isinstance(below, str):  # short form of a component: `objective: clipped`
            below = {"name": below}
        keys[step] = dict(below) if isinstance(below, Mapping) else {}
        keys = keys[step]
    keys[last] = value


def parse_overrides(overrides: Sequence[str]) -> tuple[Keys, Places]:
    """Parse `key=value` overrides, with values in YAML.

    Returns:
        Dotted key → value, and dotted key → origin.

    Raises:
        RecipeError: If an override does not have this form.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted:
            raise RecipeError(
                f"{override}: an override has the form key=value, such as reinforcement.steps=30; quote the whole "
                "argument in the shell if its value has spaces"
            )
        changes[dotted] = yaml_value(text, override)
    masked, _ = mask_literals(changes)
    return changes, {dotted: f"command line ({dotted}={shorten_value(value)})" for dotted, value in masked.items()}


def apply_changes(
    keys: Mapping[str, Any], places: Mapping[str, str], changes: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[Keys, Places]:
    """Return keys and origins in which dotted keys are set.

    Args:
        keys: Nested keys of the recipe.
        places: Origin of each key.
        changes: New value by dotted key; None removes a key.
        origins: Origin of each change.
    """
    new_keys, new_places = copy.deepcopy(dict(keys)), dict(places)
    for dotted, value in changes.items():
        set_key(new_keys, dotted, value)
        new_places = {k: v for k, v in new_places.items() if k != dotted and not k.startswith(f"{dotted}.")}
        new_places[dotted] = origins[dotted]
    return new_keys, new_places


def find_origin(places: Mapping[str, str], key: str, name: str) -> str:
    """Return the origin of a key, of a key below it, or of its nearest section.

    Args:
        places: Origin by dotted key.
        key: Dotted key.
        name: Name of the recipe, returned if no origin is known.
    """
    below = next((place for written, place in places.items() if written.startswith(f"{key}.")), None)
    if below is not None and key not in places:
        return below
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return name


def shorten_value(value: Any) -> str:
    """Format a value for an error message, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
