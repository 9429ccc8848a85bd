"""Examples of commands, which `--help` shows below the options."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files

import click

EXAMPLES: Mapping[str, Sequence[str]] = tomllib.loads((files("whetstone.cli") / "examples.toml").read_text("utf-8"))
"""Example lines by command."""


def with_examples(command: click.Command, name: str) -> click.Command:
    """Add examples to the help of a command and its subcommands.

    Args:
        command: The command.
        name: Its name on the command line after `whetstone`.
    """
    lines = EXAMPLES.get(name)
    if lines is not None:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, other in command.commands.items():
            with_examples(other, f"{name} {below}")
    return command
