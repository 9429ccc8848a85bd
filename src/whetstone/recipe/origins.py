"""Where does each key of a recipe come from? A file and line, a method, the command line, or the default."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from whetstone.recipe.methods import value_at
from whetstone.recipe.reading import place_of
from whetstone.recipe.resolved import Resolved
from whetstone.recipe.yaml_text import yaml_document

_DEFAULT = "default"
_COLUMN = 60
"""Where comments begin, in letters."""


def origins(resolved: Resolved) -> Iterator[tuple[str, Any, str]]:
    """(dotted key, value, where it was written) of every key of a recipe, defaults among them."""
    yield from _origins(resolved, yaml_document(resolved.dump(), resolved.name, plain=True), "")


def _origins(resolved: Resolved, keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for key, value in keys.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and key != "ablations":
            yield from _origins(resolved, value, f"{dotted}.")
        else:
            yield dotted, value, _origin(resolved, dotted)


def _origin(resolved: Resolved, dotted: str) -> str:
    written = value_at(resolved.keys, dotted)
    section, _, last = dotted.rpartition(".")
    by_name_alone = last in ("name", "mode") and isinstance(value_at(resolved.keys, section), str)
    if written is None and not by_name_alone and dotted not in resolved.places:
        return _DEFAULT
    return place_of(resolved.places, dotted, resolved.name)


def with_origins(resolved: Resolved) -> str:
    """A recipe as YAML, each key with where it comes from behind it; loading it gives the same recipe."""
    page = CommentedMap()
    for dotted, value, where in origins(resolved):
        *above, last = dotted.split(".")
        node = page
        for key in above:
            node = node.setdefault(key, CommentedMap())
        node[last] = _flat(value)
        node.yaml_add_eol_comment(where, last, column=_COLUMN)
    yaml, stream = YAML(), io.StringIO()
    yaml.width = 10**6
    yaml.dump(page, stream)
    return stream.getvalue()


def _flat(value: Any) -> Any:
    """On one line."""
    if isinstance(value, Mapping):
        flat = CommentedMap((key, _flat(below)) for key, below in value.items())
        flat.fa.set_flow_style()
        return flat
    if isinstance(value, list):
        listed = CommentedSeq(map(_flat, value))
        listed.fa.set_flow_style()
        return listed
    return value
