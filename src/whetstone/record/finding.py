"""Recognizes run directories without importing PyTorch or the readers of a run."""

from __future__ import annotations

from pathlib import Path

MODULES = "modules.json"
"""File in a run directory with the folders in which the modules of its recipe were searched for."""


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory, rather than a project folder that also has a `recipe.yaml`."""
    return (path / "recipe.yaml").is_file() and any((path / name).exists() for name in (".lock", MODULES))
