"""`whetstone recipes`: the worlds and methods that come with Whetstone, and what any two of them come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from whetstone.cli.notes import say_notes
from whetstone.errors import RecipeError
from whetstone.plain_json import to_json
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe, origins, read_method, with_origins

_SHOWN = 60


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def recipes(context: click.Context, as_json: bool) -> None:
    """List worlds and methods: name, paper, parts and needs. A method is laid over any recipe: `with=METHOD`."""
    if context.invoked_subcommand is not None:
        return
    worlds, methods = [_row(name) for name in built_in_recipes()], [_method_row(name) for name in built_in_methods()]
    if as_json:
        click.echo(to_json([*worlds, *methods]))
        return
    for title, rows in (
        ("Worlds: whetstone train NAME", worlds),
        ("Methods, over any recipe: whetstone train RECIPE with=NAME,…", methods),
    ):
        click.secho(f"{title}\n", underline=True)
        for row in rows:
            click.secho(row["name"], bold=True, nl=False)
            click.echo(f"  {row['title']}  {row['paper']}")
            click.echo("  " + "  ".join(f"{part}: {name}" for part, name in row["parts"].items()))
            if row["needs"]:
                click.echo(f"  needs {'; '.join(row['needs'])}")
        click.echo()


@recipes.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[with=METHOD,...] [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: by key, its value and where it is from.")
def show(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print all of RECIPE, with methods and overrides over it, and behind each key where it comes from."""
    resolved = load_recipe(recipe, overrides)
    say_notes(resolved)
    if as_json:
        click.echo(to_json({key: {"value": value, "from": where} for key, value, where in origins(resolved)}))
    else:
        click.echo(with_origins(resolved), nl=False)


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
        parts |= {f"{key}.{below}".rstrip("."): _said(said) for below, said in within}
    parts |= {f"adds to {key}": _said(more) for key, more in method.adds.items()}
    needs = [f"{key} ({wanted})" for key, wanted in method.needs.items()]
    return {"name": name, "kind": "method", "title": title, "paper": paper, "parts": parts, "needs": needs}


def _said(value: Any) -> str:
    """The names of parts, or a value."""
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    if isinstance(value, Mapping):
        given = value.get("name", value.get("mode"))
        text = str(given) if given is not None else ", ".join(f"{key} {_said(each)}" for key, each in value.items())
    else:
        text = "as by default" if value is None else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _row(name: str) -> dict[str, Any]:
    needs: list[str] = []
    try:
        recipe = load_recipe(name).recipe
    except RecipeError as error:  # one of ours that cannot be read is a bug; the others are still listed
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
        for key in ("budget_allocation", "start_states", "environment_wrapper", "dynamic_sampling")
    }
    parts |= {key: part.name for key, part in single.items() if part is not None}
    if recipe.importance_correction is not None:
        parts["importance_correction"] = recipe.importance_correction.name
    parts |= {key: "yes" for key in ("critic", "implicit_prm", "teacher") if getattr(recipe, key) is not None}
    if recipe.aggregation.mode != "token_mean":
        parts["aggregation"] = recipe.aggregation.mode
    return {"name": name, "kind": "world", "title": recipe.title, "paper": recipe.paper, "parts": parts, "needs": needs}
