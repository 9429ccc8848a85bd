"""What has to be installed for an environment, is it there, and which one command brings it?"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from whetstone.errors import RecipeError
from whetstone.extras import install_command


@dataclass(frozen=True, slots=True)
class Need:
    """One package or program."""

    kind: str
    """`package` or `program`."""
    name: str
    """What is imported, or run."""
    command: str
    """What brings it."""

    @property
    def met(self) -> bool:
        """Whether it is there."""
        if self.kind == "program":
            return shutil.which(self.name) is not None
        try:
            return importlib.util.find_spec(self.name) is not None
        except (ImportError, ValueError):
            return False


def package(name: str, extra: str) -> Need:
    """A Python package, in one of our extras."""
    return Need("package", name, install_command(extra))


def program(name: str, debian: str) -> Need:
    """A program, by the Debian package it is in."""
    return Need("program", name, f"apt-get install {debian}")


def check_needs(who: str, needs: Iterable[Need]) -> None:
    """See that everything is there.

    Raises:
        RecipeError: Something is not; the message has the command.
    """
    for need in needs:
        if not need.met:
            raise RecipeError(f"{who} needs the {need.kind} {need.name}, which is not installed: {need.command}")
