"""`whetstone recipes`: what comes with Whetstone."""

from __future__ import annotations

from typing import Any

import click

from whetstone.errors import RecipeError
from whetstone.plain_json import to_json
from whetstone.recipe import built_in_recipes, load_recipe


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def recipes(as_json: bool) -> None:
    """List every recipe: its name, paper, the parts it names and what it needs."""
    rows = [_row(name) for name in built_in_recipes()]
    if as_json:
        click.echo(to_json(rows))
        return
    for row in rows:
        click.secho(row["name"], bold=True, nl=False)
        click.echo(f"  {row['title']}  {row['paper']}")
        click.echo("  " + "  ".join(f"{part}: {name}" for part, name in row["parts"].items()))
        if row["needs"]:
            click.echo(f"  needs {', '.join(row['needs'])}")


def _row(name: str) -> dict[str, Any]:
    needs: list[str] = []
    try:
        recipe = load_recipe(name).recipe
    except RecipeError as error:  # one of ours that cannot be read is a bug; the others are still listed
        return {"name": name, "title": str(error), "paper": "", "parts": {}, "needs": []}
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
    keys = ("shaping", "credit_filters", "advantage_transforms", "columns")
    lists = {key: getattr(recipe, key) for key in keys}
    parts |= {key: ", ".join(part.name for part in listed) for key, listed in lists.items() if listed}
    rollout = recipe.rollout
    lists = {
        key: getattr(rollout, key)
        for key in ("context_transforms", "stops", "rewrites", "replay", "trajectory_filters")
    }
    parts |= {key: ", ".join(part.name for part in listed) for key, listed in lists.items() if listed}
    single = {"curriculum": recipe.curriculum}
    single |= {key: getattr(rollout, key) for key in ("allocate", "start", "environment_wrapper", "dynamic_sampling")}
    parts |= {key: part.name for key, part in single.items() if part is not None}
    if recipe.correction is not None:
        parts["correction"] = recipe.correction.name
    parts |= {key: "yes" for key in ("critic", "process_model", "teacher") if getattr(recipe, key) is not None}
    if recipe.aggregation.mode != "token_mean":
        parts["aggregation"] = recipe.aggregation.mode
    return {"name": name, "title": recipe.title, "paper": recipe.paper, "parts": parts, "needs": needs}
