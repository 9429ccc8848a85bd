"""How is a check shown to a person? One line, and under it what would mend it."""

from __future__ import annotations

import click

from whetstone.evaluation.checks import Check, CheckStatus

_MARKS = {
    CheckStatus.PASS: click.style("pass", fg="green"),
    CheckStatus.WARN: click.style("warn", fg="yellow"),
    CheckStatus.FAIL: click.style("fail", fg="red", bold=True),
}


def show(check: Check) -> None:
    """Print it."""
    click.echo(f"{_MARKS[check.verdict]}  {check.name:<24} {check.said}  ({check.seconds:.1f} s)")
    if check.mend:
        click.echo(f"{'':<30} → {check.mend}")
