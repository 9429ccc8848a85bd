"""`whetstone tasks`: look at tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from whetstone.environments import TASKS_OF_WORLDS
from whetstone.errors import RecipeError
from whetstone.plain_json import to_json
from whetstone.plugins import checked_options, find_part
from whetstone.recipe import load_recipe, yaml_value
from whetstone.tasks import SOURCES

ALL_SOURCES = {**SOURCES, **TASKS_OF_WORLDS}


@click.group()
def tasks() -> None:
    """Look at tasks."""


@tasks.command()
@click.argument("source")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-n", "count", type=click.IntRange(min=1), default=3, show_default=True, help="How many.")
@click.option("--held-out", is_flag=True, help="Held-out tasks instead of training tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, private data among it.")
def show(source: str, options: tuple[str, ...], count: int, held_out: bool, as_json: bool) -> None:
    """Show tasks of SOURCE, a task source by its name, or `package.module:name`; options as KEY=VALUE."""
    if source.endswith((".yaml", ".yml")):
        named = load_recipe(source).recipe.tasks
        like = " ".join([named.source, *(f"{key}={value}" for key, value in named.options.items())])
        raise RecipeError(f"{source}: is a recipe; its tasks are shown by `whetstone tasks show {like}`")
    part = find_part("task source", source, ALL_SOURCES)
    made = part(**checked_options(part, read_options(options)))
    shown = list(made.held_out(count)) if held_out else [made.task(index) for index in range(count)]
    for task in shown:
        if as_json:
            row = {"id": task.id, "prompt": task.prompt, "tags": dict(task.tags), "private": dict(task.private)}
            click.echo(to_json(row, other=str))
            continue
        click.secho(task.id, bold=True, nl=False)
        click.echo(f"  {', '.join(f'{name}: {value}' for name, value in task.tags.items())}")
        click.echo(f"  {task.prompt or '(the environment makes the opening)'}")
        for name, value in task.private.items():
            written = json.dumps(value, ensure_ascii=False, default=str)
            click.secho(f"    {name}: {written if len(written) <= 100 else written[:99] + '…'}", dim=True)


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE, each value as YAML reads it.

    Raises:
        RecipeError: One is not of that form.
    """
    read = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise RecipeError(f"an option is KEY=VALUE, got {option}")
        read[key] = yaml_value(value, option)
    return read
