"""Recognition of run directories, without the packages that reading a run needs."""

from __future__ import annotations

from pathlib import Path

MODULES = "modules.json"
"""File with the folders in which modules of a recipe were searched for."""


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory; a project folder with a `recipe.yaml` is not one."""
    return (path / "recipe.yaml").is_file() and any((path / name).exists() for name in (".lock", MODULES))
