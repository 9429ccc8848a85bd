"""`whetstone completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_WHETSTONE_COMPLETE"
"""Environment variable by which a shell requests completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a SHELL script that completes commands, recipes, recipe keys, runs and trajectories."""
    script = get_completion_class(shell)
    assert script is not None  # click knows these
    click.echo(script(context.find_root().command, {}, "whetstone", VARIABLE).source())
