"""How is a check shown to a person? One line, and under it what would mend it."""

from __future__ import annotations

import click

from whetstone.evaluation.checks import Check, Verdict

_MARKS = {
    Verdict.GOOD: click.style("good", fg="green"),
    Verdict.NOTE: click.style("note", fg="yellow"),
    Verdict.BAD: click.style("bad ", fg="red", bold=True),
}


def show(check: Check) -> None:
    """Print it."""
    click.echo(f"{_MARKS[check.verdict]}  {check.name:<24} {check.said}  ({check.seconds:.1f} s)")
    if check.mend:
        click.echo(f"{'':<30} → {check.mend}")
