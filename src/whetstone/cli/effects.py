"""Options and questions about side effects of tools: `--allow-effects` and `--call-tools`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping

import click

from whetstone.tools import CallPolicy, Effect
from whetstone.tools.side_effects import describe_effects, describe_remedy

PERMISSION = "environment.allow_effects=true"
"""Override that `--allow-effects` adds."""
allow_effects_option = click.option(
    "--allow-effects", is_flag=True, help="Permit real calls of tools that write or destroy something."
)
call_tools_option = click.option(
    "--call-tools", is_flag=True, help="Also call tools that declare no effect, with made-up arguments."
)


def add_permissions(overrides: tuple[str, ...], allow_effects: bool) -> tuple[str, ...]:
    """Append the override of `--allow-effects` to the overrides of a command."""
    return (*overrides, PERMISSION) if allow_effects else overrides


def ask_once() -> Callable[[str], bool]:
    """Return a function that asks a yes-or-no question in the terminal, at most once.

    Further calls return the first answer. Without a terminal the answer is no.
    """

    @functools.cache
    def answer() -> bool:
        return click.confirm(question[0], err=True)

    question: list[str] = []

    def ask(text: str) -> bool:
        question.append(text)
        return is_terminal() and answer()

    return ask


def is_terminal() -> bool:
    """Return whether a person can be asked: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def check_policy(effects: Mapping[str, Effect | None], *, allow_effects: bool, call_tools: bool) -> CallPolicy:
    """Return the policy that decides which tools a check really calls.

    In a terminal, the user is asked about tools of unknown effect. `environment.allow_effects` of a recipe permits
    calls of a run, not those of a check, whose arguments are made up.

    Args:
        effects: Side effect of each tool; None: unknown.
        allow_effects: Whether tools with side effects are called (`--allow-effects`).
        call_tools: Whether tools of unknown effect are called (`--call-tools`).
    """
    unknown = [name for name, effect in effects.items() if effect is None]
    if unknown and not call_tools and is_terminal():
        call_tools = click.confirm(f"Call {', '.join(unknown)} (no effect declared) for this check?", err=True)
    return CallPolicy(allow_effects, call_tools)


def report_refused(calls: CallPolicy, effects: Mapping[str, Effect | None]) -> None:
    """Print the tools that are not called, and how to permit them, on standard error."""
    if refused := calls.refused(effects):
        remedy = describe_remedy(refused, for_check=True)
        click.echo(f"whetstone: not called: {describe_effects(refused)}; {remedy}", err=True)
