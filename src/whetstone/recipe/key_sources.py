"""Origin of each recipe key: file and line, method, command line, or default."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from whetstone.recipe.loader import find_origin
from whetstone.recipe.methods import get_value
from whetstone.recipe.resolved import Resolved
from whetstone.recipe.yaml_text import yaml_document

_DEFAULT = "default"
_COLUMN = 60
"""Column of the comments with the origins."""


def list_key_sources(resolved: Resolved) -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted key, value, origin) of every recipe key, including defaults."""
    yield from _origins(resolved, yaml_document(resolved.dump(), resolved.name, plain=True), "")


def _origins(resolved: Resolved, keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for key, value in keys.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and key != "ablations":
            yield from _origins(resolved, value, f"{dotted}.")
        else:
            yield dotted, value, _origin(resolved, dotted)


def _origin(resolved: Resolved, dotted: str) -> str:
    written = get_value(resolved.keys, dotted)
    section, _, last = dotted.rpartition(".")
    by_name_alone = last in ("name", "mode") and isinstance(get_value(resolved.keys, section), str)
    if written is None and not by_name_alone and dotted not in resolved.places:
        return _DEFAULT
    return find_origin(resolved.places, dotted, resolved.name)


def with_origins(resolved: Resolved) -> str:
    """Format a recipe as YAML, with the origin of each key as a comment.

    Loading the text gives the same recipe.
    """
    page = CommentedMap()
    for dotted, value, where in list_key_sources(resolved):
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
    """Convert a value to YAML flow style, which is written on one line."""
    if isinstance(value, Mapping):
        flat = CommentedMap((key, _flat(below)) for key, below in value.items())
        flat.fa.set_flow_style()
        return flat
    if isinstance(value, list):
        listed = CommentedSeq(map(_flat, value))
        listed.fa.set_flow_style()
        return listed
    return value
