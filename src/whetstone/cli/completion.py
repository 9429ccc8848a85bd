"""`whetstone completion`: what makes a shell complete commands, recipes, keys, runs and trajectories."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_WHETSTONE_COMPLETE"
"""By which the shell asks."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL reads to complete whetstone's commands, recipes, keys of a recipe, runs and trajectories."""
    found = get_completion_class(shell)
    assert found is not None  # click knows these
    click.echo(found(context.find_root().command, {}, "whetstone", VARIABLE).source())
