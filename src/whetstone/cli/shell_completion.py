"""Shell completion of recipes, recipe keys and their values, runs and trajectories.

Shells call this at every press of the tab key, so nothing heavy is imported and nothing is validated.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel

from whetstone.recipe.loader import built_in_methods, built_in_recipes
from whetstone.recipe.settings import Recipe

_MOST_IDS = 200


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of recipes and methods, and YAML files."""
    names = [name for name in (*built_in_recipes(), *built_in_methods()) if name.startswith(incomplete)]
    return [*map(CompletionItem, names), *_paths(incomplete, lambda path: path.suffix in (".yaml", ".yml"))]


def run_folders(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete run directories, and the folders that lead to them."""
    return _paths(incomplete, lambda path: (path / "recipe.yaml").is_file())


def recipes_or_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete recipes, methods and run directories."""
    items = [*complete_recipes(context, parameter, incomplete), *run_folders(context, parameter, incomplete)]
    return list({item.value: item for item in items}.values())


def complete_overrides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an override: dotted keys, and after `=` the allowed values.

    A section is completed as `key.`, any other key as `key=`.
    """
    key, equals, begun = incomplete.partition("=")
    if equals:
        return [CompletionItem(f"{key}={value}") for value in _values(key) if value.startswith(begun)]
    depth = key.count(".")
    return [
        CompletionItem(f"{name}{'.' if section else '='}", help=description)
        for name, section, description in _keys(Recipe, "")
        if name.startswith(key) and name.count(".") == depth
    ]


def trajectory_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete trajectory IDs of the run that precedes them on the command line."""
    run = context.params.get("run_dir")
    items: list[CompletionItem] = []
    for path in sorted(Path(run or ".").glob("trajectories/*.jsonl"), reverse=True):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name = _id_in(line)
                if name.startswith(incomplete) and name:
                    items.append(CompletionItem(name))
                if len(items) >= _MOST_IDS:
                    return items
    return items


def _id_in(line: str) -> str:
    head = line.partition('"id":')[2]
    try:
        return str(json.JSONDecoder().raw_decode(head.lstrip())[0])
    except ValueError:
        return ""


def _paths(incomplete: str, wanted: Any) -> list[CompletionItem]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    if not folder.is_dir():
        return []
    items = []
    for path in sorted(folder.iterdir()):
        if not str(path).startswith(incomplete.rstrip("/") if incomplete != "" else "") or path.name.startswith("."):
            continue
        if wanted(path):
            items.append(CompletionItem(str(path)))
        elif path.is_dir():
            items.append(CompletionItem(f"{path}/"))
    return items


def _keys(model: type[BaseModel], above: str) -> Iterator[tuple[str, bool, str]]:
    """Yield (dotted key, whether it is a section, first line of its description)."""
    for name, field in model.model_fields.items():
        dotted = f"{above}.{name}".lstrip(".")
        below = _model_in(field.annotation)
        yield dotted, below is not None, (field.description or "").partition("\n")[0]
        if below is not None:
            yield from _keys(below, dotted)


def _values(key: str) -> list[str]:
    model: type[BaseModel] | None = Recipe
    *above, last = key.split(".")
    for name in above:
        field = model.model_fields.get(name) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    field = model.model_fields.get(last) if model is not None else None
    if key == "with":
        return built_in_methods()
    return _choices(field.annotation) if field is not None else []


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    if annotation is bool:
        return ["true", "false"]
    return [choice for inner in typing.get_args(annotation) for choice in _choices(inner)]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class of a section; None for other keys and for components."""
    for inner in (annotation, *(typing.get_args(annotation) if _is_union(annotation) else ())):
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner.model_config.get("extra") == "forbid":
            return inner
    return None


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
