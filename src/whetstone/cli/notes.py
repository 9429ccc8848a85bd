"""What a person should know of how a recipe came about is said before anything begins."""

from __future__ import annotations

import click

from whetstone.recipe import Resolved


def say_notes(resolved: Resolved) -> None:
    """A line for each, on standard error."""
    for note in resolved.notes:
        click.echo(f"whetstone: {note}", err=True)
