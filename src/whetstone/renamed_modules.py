"""New names of modules and exports that were renamed, for errors and deprecated aliases.

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
    """Import finder for modules of an earlier release, which are refused with their new name.

    `install_finder` puts it after all other finders, so that only imports that would fail reach it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise an error with the new name if the module was renamed; otherwise find nothing.

        Raises:
            ModuleNotFoundError: If the module was renamed; the message has the new name.
        """
        if new := renamed_module(name):
            raise ModuleNotFoundError(f"No module named {name!r}: it was renamed to {new!r}", name=name)


def renamed_module(name: str) -> str | None:
    """Return the new dotted name of a module of an earlier release, or None."""
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
    """Return the new name of a package's export of an earlier release, or None.

    Args:
        package: Dotted name of the package in this release, with `whetstone`.
        name: Requested name.
    """
    new = _tables()["exports"].get(package.partition(".")[2], {}).get(name)
    return str(new) if new else None


def install_finder() -> None:
    """Install the finder of renamed modules after all other import finders, once per process."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((files("whetstone") / "renamed_modules.toml").read_text("utf-8"))
