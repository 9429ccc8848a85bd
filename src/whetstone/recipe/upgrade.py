"""Conversion of stored recipes of earlier releases to the names of this release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whetstone.plugins import OptionError
from whetstone.renamed_modules import renamed_module
from whetstone.renames import (
    COMPONENT_KEYS,
    COMPONENT_OPTION_VALUES,
    COMPONENT_OPTIONS,
    COMPONENTS,
    COMPONENTS_WITHIN,
    DEPRECATED_KEYS,
    RECIPE_KEYS,
    RECIPE_VALUES,
    STAGES,
    is_deprecation_active,
    match_key,
    removal_release,
    renamed_key,
)

DEPRECATED_MARK = "deprecated "
"""Prefix of an entry of the places of a recipe for a key that was replaced."""


def upgrade_recipe(keys: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Convert a stored recipe to the names of this release; current names are kept.

    The stages of `stages` and the changes of `ablations` are converted as well.

    Args:
        keys: Keys of a recipe, or changes to a recipe.
        base: Converted recipe that `keys` changes; it provides the name of a component if only its options change.
    """
    upgraded: dict[str, Any] = {}
    for key, value in keys.items():
        if "." in key:  # an ablation can have dotted keys
            new = upgrade_key(key)
            upgraded[new] = _value_at(upgrade_recipe(_nest(key, value)), new)
        else:
            upgraded[key] = _copy(value)
    for old, new in RECIPE_KEYS.items():
        _move(upgraded, upgraded, old.split("."), new.split("."), {})
    for key, values in RECIPE_VALUES.items():
        _replace_value(upgraded, key.split("."), values)
    for key, kind in COMPONENT_KEYS.items():
        _replace_components(upgraded, key.split("."), kind, base or {})
    if "stages" in upgraded:
        upgraded["stages"] = [upgrade_recipe(stage, upgraded) for stage in upgraded["stages"]]
    if "ablations" in upgraded:
        changed = upgraded["ablations"].items()
        upgraded["ablations"] = {name: upgrade_recipe(changes, upgraded) for name, changes in changed}
    return upgraded


def upgrade_key(dotted: str) -> str:
    """Convert a dotted key of a stored recipe to the name of this release.

    Keys below a renamed key are converted too.
    """
    if dotted.startswith("stages."):
        stages, number, *below = dotted.split(".", 2)
        return ".".join([stages, number, *map(upgrade_key, below)])
    for old, new in RECIPE_KEYS.items():
        dotted = _rename_dotted(dotted, old.split("."), new.split("."))
    return dotted


def replace_deprecated_keys(
    keys: Mapping[str, Any], places: Mapping[str, str], *, are_changes: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Replace the deprecated keys of one layer of a recipe, which are accepted until their removal.

    Args:
        keys: Nested keys of a file, or changes with dotted keys.
        places: Dotted key → origin.
        are_changes: Whether `keys` are changes, in which a new key of another section is dotted.

    Returns:
        Keys, and places with an entry `DEPRECATED_MARK` + old key for each replaced key; see `list_deprecated_keys`.

    Raises:
        OptionError: If a key is set under both names.
    """
    replaced, origins = {**keys}, {**places}
    for old, release in DEPRECATED_KEYS.items():
        if not is_deprecation_active(release):
            continue
        pattern, new = old.split("."), RECIPE_KEYS[old].split(".")
        present = [*_dotted_keys(replaced)]
        for dotted in present:
            renamed = _rename_dotted(dotted, pattern, new)
            if renamed == dotted or len(dotted.split(".")) > len(pattern):
                continue
            if renamed in present:
                raise OptionError(dotted, f"renamed to {renamed}, which is set too; remove {dotted}")
            origins[f"{DEPRECATED_MARK}{dotted}"] = origins.get(dotted, "")
        replaced = {
            _rename_dotted(key, pattern, new) if are_changes or "." in key else key: _copy(value)
            for key, value in replaced.items()
        }
        _move(replaced, replaced, pattern, new, {})
        origins = {_rename_dotted(key, pattern, new): place for key, place in origins.items()}
    return replaced, origins


def list_deprecated_keys(places: Mapping[str, str]) -> list[str]:
    """Return one notice per deprecated key that `replace_deprecated_keys` replaced.

    Args:
        places: Places of a recipe.
    """
    notices = []
    for marked, place in places.items():
        dotted = marked.removeprefix(DEPRECATED_MARK)
        if dotted == marked:
            continue
        old = next(old for old in DEPRECATED_KEYS if match_key(old.split("."), dotted.split(".")) is not None)
        removal = removal_release(DEPRECATED_KEYS[old])
        where = f"{place}  " if place else ""
        notices.append(f"{where}{dotted}: renamed to {renamed_key(dotted)}; the old name works until {removal}")
    return notices


def _dotted_keys(keys: Any, above: str = "") -> Iterator[str]:
    for key, value in keys.items() if isinstance(keys, Mapping) else ():
        yield f"{above}{key}"
        yield from _dotted_keys(value, f"{above}{key}.")


def _rename_dotted(dotted: str, old: list[str], new: list[str]) -> str:
    parts = dotted.split(".")
    values = match_key(old, parts[: len(old)])
    if values is None:
        return dotted
    return ".".join([*(values.get(part, part) for part in new), *parts[len(old) :]])


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(below) for key, below in value.items()}
    if isinstance(value, str) and value.startswith("whetstone.") and ":" in value:
        module, _, name = value.partition(":")
        return f"{renamed_module(module) or module}:{name}"
    return [_copy(below) for below in value] if isinstance(value, list) else value


def _children(keys: dict[str, Any], part: str) -> list[str]:
    """Return the keys of a mapping that match one part of a pattern."""
    if part == "STAGE":
        return [stage for stage in STAGES if stage in keys]
    if part == "NAME":
        return list(keys)
    return [part] if part in keys else []


def _nest(dotted: str, value: Any) -> dict[str, Any]:
    """Return a nested mapping with one dotted key."""
    for part in reversed(dotted.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _value_at(keys: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        keys = keys[part]
    return keys


def _move(
    root: dict[str, Any], node: Any, old: list[str], new: list[str], values: dict[str, str], path: tuple[str, ...] = ()
) -> None:
    """Move the value of an old key to the new key, also within the elements of lists.

    Args:
        root: Whole recipe.
        node: Part of the recipe at `path`.
        old: Remaining parts of the old key.
        new: Parts of the new key.
        values: Values of the placeholders so far.
        path: Path of `node` in the recipe.
    """
    for each in node if isinstance(node, list) else ():
        _move(root, each, old, new, values, path)
    if not isinstance(node, dict):
        return
    part, *rest = old
    for key in _children(node, part):
        known = {**values, part: key} if part in ("STAGE", "NAME") else values
        if rest:
            _move(root, node[key], rest, new, known, (*path, key))
            continue
        target = tuple(known.get(each, each) for each in new)
        if target[:-1] == path:
            _rename(node, key, target[-1])
            continue
        value, above = node.pop(key), root
        for each in target[:-1]:
            below = above.setdefault(each, {})
            above = below if isinstance(below, dict) else {}
        above.setdefault(target[-1], value)


def _rename(node: dict[str, Any], old: str, new: str) -> None:
    """Rename a key in place, without changing the order of keys."""
    items = [(new if key == old else key, value) for key, value in node.items()]
    node.clear()
    node.update(items)


def _replace_value(node: Any, path: list[str], values: Mapping[str, str]) -> None:
    if not isinstance(node, dict):
        return
    part, *rest = path
    for key in _children(node, part):
        if rest:
            _replace_value(node[key], rest, values)
        elif isinstance(node[key], str):
            node[key] = values.get(node[key], node[key])


def _replace_components(keys: dict[str, Any], path: list[str], kind: str, base: Mapping[str, Any]) -> None:
    """Convert the components of a recipe key, nested or written with dots."""
    name = _name(_lookup(base, path), kind)
    *above, last = path
    parent = _lookup(keys, above)
    if isinstance(parent, dict) and last in parent:
        parent[last] = _component(parent[last], kind, name)
    for key in [key for key in keys if "." in key]:
        parts = key.split(".")
        if parts == path:
            keys[key] = _component(keys[key], kind, name)
        elif parts[:-1] == path:
            ((option, value),) = _component({parts[-1]: keys[key]}, kind, name).items()
            keys[key] = value
            _rename(keys, key, ".".join([*path, option]))


def _lookup(keys: Any, path: list[str]) -> Any:
    """Return the value at a path of keys, or None."""
    for part in path:
        keys = keys.get(part) if isinstance(keys, Mapping) else None
    return keys


def _name_key(kind: str) -> str:
    return "source" if kind == "task source" else "name"


def _name(value: Any, kind: str) -> str | None:
    """Return the name of a component, which is written with or without options."""
    name = value.get(_name_key(kind)) if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def _component(value: Any, kind: str, default: str | None = None) -> Any:
    """Convert a component, or a list of components, to the names of this release.

    Components in its options are converted too.

    Args:
        value: A name, a mapping of the name and options, or a list of these.
        kind: Kind of the component.
        default: Name of the component if `value` has only options.
    """
    names = COMPONENTS.get(kind, {})
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_component(each, kind) for each in value]
    if not isinstance(value, dict):
        return value
    name = _name(value, kind) or default
    name = names.get(name, name) if name is not None else None
    renamed = COMPONENT_OPTIONS.get(name, {}) if name is not None else {}
    options = {renamed.get(key, key): below for key, below in value.items()}
    for key, values in COMPONENT_OPTION_VALUES.get(name or "", {}).items():
        if isinstance(options.get(key), str):
            options[key] = values.get(options[key], options[key])
    if isinstance(options.get(_name_key(kind)), str):
        options[_name_key(kind)] = name
    return {key: _option(key, below, kind) for key, below in options.items()}


def _option(key: str, value: Any, kind: str) -> Any:
    """Convert the value of an option, which can name components."""
    within = COMPONENTS_WITHIN.get(kind, {}).get(key)
    if key == "terms" and within is not None and isinstance(value, dict):
        return {name: _component(each, within) for name, each in value.items()}
    if within is not None:
        return _component(value, within)
    return _component(value, kind) if isinstance(value, dict) and "name" in value else value
