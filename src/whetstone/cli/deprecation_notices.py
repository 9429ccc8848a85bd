"""Notices about a recipe on standard error, such as deprecated keys."""

from __future__ import annotations

import click

from whetstone.recipe import Resolved


def print_notices(resolved: Resolved) -> None:
    """Print each notice of a recipe on standard error."""
    for note in resolved.notes:
        click.echo(f"whetstone: {note}", err=True)
