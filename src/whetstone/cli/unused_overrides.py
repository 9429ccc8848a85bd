"""Warnings about overrides that have no effect on a command."""

from __future__ import annotations

from collections.abc import Iterable

import click

LEARNING = (
    "reinforcement", "supervised", "ablations", "curriculum", "advantage", "reward_shaping", "advantage_transforms",
    "credit_filters", "custom_columns", "role_tag", "objective", "loss_terms", "aggregation", "importance_correction",
    "critic", "teacher", "implicit_prm",
)  # fmt: skip
"""Recipe keys that affect only training, not how the policy acts."""


def warn_unused_overrides(overrides: Iterable[str], unread: Iterable[str], why: str) -> None:
    """Print a warning for each override that has no effect on a command.

    Args:
        overrides: Overrides on the command line.
        unread: Dotted keys without effect, including all keys below them.
        why: Reason, as the end of the warning.
    """
    keys = tuple(unread)
    for override in overrides:
        key = override.partition("=")[0]
        if any(key == each or key.startswith(f"{each}.") for each in keys):
            click.echo(f"whetstone: {override} has no effect here: {why}", err=True)
