"""Overrides that a command has no use for are said, so that nobody takes them for what decided its numbers."""

from __future__ import annotations

from collections.abc import Iterable

import click

LEARNING = (
    "reinforcement", "supervised", "ablations", "curriculum", "advantage", "reward_shaping", "advantage_transforms",
    "credit_filters", "custom_columns", "role_tag", "objective", "loss_terms", "aggregation", "importance_correction",
    "critic", "teacher", "implicit_prm",
)  # fmt: skip
"""Keys that decide what is learned, and nothing of how the policy acts."""


def say_unread(overrides: Iterable[str], unread: Iterable[str], why: str) -> None:
    """A line for each override of a key that is not read.

    Args:
        unread: Dotted keys, what lies below them included.
        why: Nothing reads them.
    """
    keys = tuple(unread)
    for override in overrides:
        key = override.partition("=")[0]
        if any(key == each or key.startswith(f"{each}.") for each in keys):
            click.echo(f"whetstone: {override} has no effect here: {why}", err=True)
