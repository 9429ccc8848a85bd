"""Requirements of environments: packages and programs, a check whether they are installed, and install commands."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command


@dataclass(frozen=True, slots=True)
class Requirement:
    """One required package or program.

    Created by `require_package` or `require_program`.
    """

    kind: str
    """Kind of the requirement: `package` or `program`."""
    name: str
    """Name of the module to import or of the program to run."""
    command: str
    """Command that installs the requirement."""

    @property
    def is_installed(self) -> bool:
        """Return whether the package can be imported or the program is on the PATH."""
        if self.kind == "program":
            return shutil.which(self.name) is not None
        try:
            return importlib.util.find_spec(self.name) is not None
        except (ImportError, ValueError):
            return False


def require_package(name: str, extra: str) -> Requirement:
    """Return the requirement of a Python package.

    Args:
        name: Name of the module.
        extra: Extra of Whetstone that installs the package.
    """
    return Requirement("package", name, install_command(extra))


def require_program(name: str, debian: str) -> Requirement:
    """Return the requirement of a program.

    Args:
        name: Name of the executable.
        debian: Debian package that contains it.
    """
    return Requirement("program", name, f"apt-get install {debian}")


def check_requirements(who: str, needs: Iterable[Requirement]) -> None:
    """Check that all requirements of a component are installed.

    Args:
        who: Name of the component, for the message.
        needs: Requirements of the component.

    Raises:
        RecipeError: If a requirement is not installed; the message has the command that installs it.
    """
    for need in needs:
        if not need.is_installed:
            raise RecipeError(
                f"{who} needs the {need.kind} {need.name}, which is not installed; install it with: {need.command}"
            )
