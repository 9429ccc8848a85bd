"""Requirements of environments: packages and programs, whether they are installed, and the command that installs
them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command


@dataclass(frozen=True, slots=True)
class Requirement:
    """One required package or program."""

    kind: str
    """`require_package` or `require_program`."""
    name: str
    """Module that is imported, or program that is run."""
    command: str
    """Command that installs it."""

    @property
    def is_installed(self) -> bool:
        """Return whether it is installed."""
        if self.kind == "program":
            return shutil.which(self.name) is not None
        try:
            return importlib.util.find_spec(self.name) is not None
        except (ImportError, ValueError):
            return False


def require_package(name: str, extra: str) -> Requirement:
    """Return the requirement of a Python package that an extra of Whetstone installs."""
    return Requirement("package", name, install_command(extra))


def require_program(name: str, debian: str) -> Requirement:
    """Return the requirement of a program, with its Debian package."""
    return Requirement("program", name, f"apt-get install {debian}")


def check_requirements(who: str, needs: Iterable[Requirement]) -> None:
    """Check that all requirements are installed.

    Raises:
        RecipeError: If one is not; the message has the command.
    """
    for need in needs:
        if not need.is_installed:
            raise RecipeError(f"{who} needs the {need.kind} {need.name}, which is not installed: {need.command}")
