"""Messages about overrides on the command line: without an effect, or written as an option."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click

from whetstone.recipe import Recipe
from whetstone.recipe.error_messages import list_fields
from whetstone.recipe.importers.names import explain_unknown_key

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


def suggest_override(option: str, arguments: Sequence[str]) -> str:
    """Return the message about an unknown option that is a key of a recipe, or of another library; empty for others.

    Args:
        option: The option, such as `--steps`.
        arguments: Command line, with the value of the option.
    """
    key, fields = option.lstrip("-").replace("-", "_"), list_fields(Recipe)
    following = [text for word, text in zip(arguments, [*arguments[1:], ""], strict=True) if word == option]
    attached = [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
    text = next(iter([*attached, *following]), "")
    value: Any = text or None
    with suppress(ValueError):
        value = json.loads(text)
    place = f"{option}: no such option; keys of a recipe are arguments without dashes"
    setting = "" if text.startswith("-") or not text else f"={text}"
    if key.partition(".")[0] in {*fields, "with"}:
        return f"{place}: {key}{setting}"
    remedy = explain_unknown_key(key, value if setting else None, fields, {})
    if match := re.fullmatch(r"; did you mean ([\w.]+)\?", remedy):
        return f"{place}: {match[1]}{setting}"
    return f"{place}: {remedy.removeprefix('; set ')}" if remedy.startswith("; set ") else ""
