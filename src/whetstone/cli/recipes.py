"""`whetstone recipes`: list built-in recipes and methods, and print the combination of any two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from whetstone import analysis
from whetstone.cli.deprecation_notices import print_notices
from whetstone.errors import RecipeError
from whetstone.recipe import (
    built_in_methods,
    built_in_recipes,
    list_key_sources,
    load_recipe,
    read_method,
    with_origins,
)
from whetstone.strict_json import to_json

_SHOWN = 60


@click.group("recipes", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def recipes_command(context: click.Context, as_json: bool) -> None:
    """List recipes and methods: name, paper, components and requirements. Apply a method to any recipe with
    `with=METHOD`."""
    if context.invoked_subcommand is not None:
        return
    worlds, methods = [_row(name) for name in built_in_recipes()], [_method_row(name) for name in built_in_methods()]
    if as_json:
        click.echo(to_json([*worlds, *methods]))
        return
    for title, rows in (
        ("Recipes: whetstone train NAME", worlds),
        ("Methods, for any recipe: whetstone train RECIPE with=NAME,…", methods),
    ):
        click.secho(f"{title}\n", underline=True)
        for row in rows:
            click.secho(row["name"], bold=True, nl=False)
            click.echo(f"  {row['title']}  {row['paper']}")
            click.echo("  " + "  ".join(f"{part}: {name}" for part, name in row["parts"].items()))
            if row["needs"]:
                click.echo(f"  needs {'; '.join(row['needs'])}")
        click.echo()


@recipes_command.command("show")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[with=METHOD,...] [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the value and the origin of each key.")
def show_recipe_command(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print all keys of RECIPE, with methods and overrides applied, and the origin of each value.

    Options that built-in components have in addition follow as comments, with their defaults.
    """
    resolved = load_recipe(recipe, overrides)
    print_notices(resolved)
    components = analysis.list_default_options(resolved.recipe)
    if as_json:
        keys = {key: {"value": value, "from": where} for key, value, where in list_key_sources(resolved)}
        for component in components:
            for option, value in component.options.items():
                keys.setdefault(f"{component.key}.{option}", {"value": _plain(value), "from": "default"})
        click.echo(to_json(keys))
        return
    click.echo(with_origins(resolved), nl=False)
    if components:
        click.echo("# options that are not set, and their defaults:")
    for component in components:
        options = ", ".join(f"{option}: {_format_option(value)}" for option, value in component.options.items())
        click.echo(f"# {component.key} ({component.name}): {options}")


def _plain(value: Any) -> Any:
    """Return the default of an option as a value of JSON; text for other types."""
    return json.loads(json.dumps(value, default=str))


def _format_option(value: Any) -> str:
    """Format the default of an option as YAML on one line."""
    value = _plain(value)
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _method_row(name: str) -> dict[str, Any]:
    try:
        method = read_method(name)
    except RecipeError as error:  # as below
        return {"name": name, "kind": "method", "title": str(error), "paper": "", "parts": {}, "needs": []}
    keys = dict(method.keys)
    title, paper, _ = (keys.pop(key, "") for key in ("title", "paper", "ablations"))
    parts: dict[str, str] = {}
    for key, value in keys.items():
        within = value.items() if key in ("rollout", "reinforcement") and isinstance(value, Mapping) else [("", value)]
        parts |= {f"{key}.{below}".rstrip("."): _format_value(below_value) for below, below_value in within}
    parts |= {f"adds to {key}": _format_value(more) for key, more in method.adds.items()}
    needs = [f"{key} ({wanted})" for key, wanted in method.needs.items()]
    return {"name": name, "kind": "method", "title": title, "paper": paper, "parts": parts, "needs": needs}


def _format_value(value: Any) -> str:
    """Format a value of a recipe; components are formatted as their names."""
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, Mapping):
        name = value.get("name", value.get("mode"))
        text = (
            str(name) if name is not None else ", ".join(f"{key} {_format_value(each)}" for key, each in value.items())
        )
    else:
        text = "default" if value is None else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _row(name: str) -> dict[str, Any]:
    needs: list[str] = []
    try:
        recipe = load_recipe(name).recipe
    except RecipeError as error:  # a built-in recipe that cannot be read is a bug; list the others
        return {"name": name, "kind": "world", "title": str(error), "paper": "", "parts": {}, "needs": []}
    if recipe.tasks.source == "gsm8k" and recipe.tasks.options.get("path") == "data/gsm8k":
        needs.append("tasks.path=FOLDER with train.jsonl and test.jsonl")
    parts = {
        "tasks": recipe.tasks.source,
        "environment": recipe.environment.name,
        "tools": ", ".join(recipe.environment.options.get("tools", [])) or "none",
        "reward": recipe.reward.name,
        "strategy": recipe.rollout.strategy.name,
        "advantage": recipe.advantage.name,
        "objective": recipe.objective.name,
    }
    keys = ("reward_shaping", "credit_filters", "advantage_transforms", "custom_columns")
    lists = {key: getattr(recipe, key) for key in keys}
    parts |= {key: ", ".join(part.name for part in listed) for key, listed in lists.items() if listed}
    rollout = recipe.rollout
    lists = {
        key: getattr(rollout, key)
        for key in ("context_transforms", "early_stopping", "context_rewrites", "replay", "trajectory_filters")
    }
    parts |= {key: ", ".join(part.name for part in listed) for key, listed in lists.items() if listed}
    single = {"curriculum": recipe.curriculum}
    single |= {
        key: getattr(rollout, key)
        for key in ("budget_allocation", "start_states", "environment_wrapper", "action_mask", "dynamic_sampling")
    }
    parts |= {key: part.name for key, part in single.items() if part is not None}
    if recipe.importance_correction is not None:
        parts["importance_correction"] = recipe.importance_correction.name
    parts |= {key: "yes" for key in ("critic", "implicit_prm", "teacher") if getattr(recipe, key) is not None}
    if recipe.aggregation.mode != "token_mean":
        parts["aggregation"] = recipe.aggregation.mode
    return {"name": name, "kind": "world", "title": recipe.title, "paper": recipe.paper, "parts": parts, "needs": needs}
