"""Printing of check results: one line with the status, and a second one with the remedy."""

from __future__ import annotations

import click

from whetstone.evaluation.check_result import Check, CheckStatus

_MARKS = {
    CheckStatus.PASS: click.style("pass", fg="green"),
    CheckStatus.WARN: click.style("warn", fg="yellow"),
    CheckStatus.FAIL: click.style("fail", fg="red", bold=True),
}


def print_check(check: Check) -> None:
    """Print the result of a check, with its remedy on a second line if it has one."""
    click.echo(f"{_MARKS[check.verdict]}  {check.name:<24} {check.said}  ({check.seconds:.1f} s)")
    if check.mend:
        click.echo(f"{'':<30} → {check.mend}")
