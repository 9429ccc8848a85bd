"""Aliases of component names: names from papers and from other libraries.

Note:
    A name of a whole algorithm selects only one component here. PPO and GRPO have the same objective, the clipped
    surrogate; they differ in the advantage.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

ALIASES: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    (files(__package__) / "aliases.toml").read_text("utf-8")
)
"""Recipe key → alias → component, with options if the alias implies them."""


def find_alias(key: str, keys: Mapping[str, Any]) -> str:
    """Return the alias that a recipe key has as its value, in the spelling of `ALIASES`; otherwise an empty string."""
    written = keys.get(key)
    name = written.get("name") if isinstance(written, Mapping) else written
    name = name.lower().replace("-", "_") if isinstance(name, str) else ""
    return name if name in ALIASES[key] else ""


def replace_aliases(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replace aliases in the keys of a recipe by component names; explicit options override those of the alias."""
    resolved = dict(keys)
    for key, names in ALIASES.items():
        written = keys.get(key)
        options = dict(written) if isinstance(written, Mapping) else {"name": written}
        name = options.get("name")
        meant = names.get(name.lower().replace("-", "_")) if isinstance(name, str) else None
        if meant is not None:
            resolved[key] = {**meant, **{option: value for option, value in options.items() if option != "name"}}
    return resolved
