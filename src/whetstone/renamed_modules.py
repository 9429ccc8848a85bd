"""New names of modules and exports of earlier releases, for errors and deprecated aliases.

The names are in `renamed_modules.toml`, which is read when an import fails.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.resources import files
from types import ModuleType
from typing import Any


class RenamedModules(MetaPathFinder):
    """Finder that is asked last: a module that was not found and has a new name is refused with it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse a module of an earlier release.

        Raises:
            ModuleNotFoundError: With the new name, if the module was renamed.
        """
        if new := renamed_module(name):
            raise ModuleNotFoundError(f"No module named {name!r}: it was renamed to {new!r}", name=name)


def renamed_module(name: str) -> str | None:
    """Return the new dotted name of a module of an earlier release, or None if it was never renamed."""
    package, _, below = name.partition(".")
    if package != "whetstone":
        return None
    rest: list[str] = []
    parts = below.split(".")
    while parts:
        if new := _tables()["modules"].get(".".join(parts)):
            return ".".join(["whetstone", new, *rest])
        rest.insert(0, parts.pop())
    return None


def renamed_export(package: str, name: str) -> str | None:
    """Return the new name of an export of an earlier release, or None if the package never had it.

    Args:
        package: Dotted name of the package in this release, with `whetstone`.
        name: Requested name.
    """
    new = _tables()["exports"].get(package.partition(".")[2], {}).get(name)
    return str(new) if new else None


def install_finder() -> None:
    """Add the finder after all others, once."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("whetstone") / "renamed_modules.toml").read_text("utf-8"))
