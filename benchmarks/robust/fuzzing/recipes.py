"""Recipes: any text, and any change of a built-in recipe, is valid or gives a one-line error.

A valid recipe is dumped and loaded again, and must be unchanged.
"""

from __future__ import annotations

import os
from importlib import resources
from typing import Any

from ruamel.yaml import YAML

from fuzzing.choices import Choices, require
from fuzzing.trying import scratch
from whetstone.errors import RecipeError
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.recipe import resolved as resolved_module

_folder = scratch("recipes")
_TEXTS = tuple(
    (resources.files("whetstone") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    for name in (*built_in_recipes(), *(f"methods/{name}" for name in built_in_methods()))
)
_LINES = tuple(sorted({line for text in _TEXTS for line in text.splitlines() if line and not line.startswith("#")}))
_NAMES = tuple(sorted({line.partition(":")[0].strip() for line in _LINES}))
WORDS = (
    *_NAMES, "extends", "with", "wins", "adds", "needs", "on", "ablations", "name",
    "source", "path", "file", "folder", "frozen", "tiny", "demo",
    "small-cpu", "&a ", "*a",
    "&b [*a, *a, *a]", "<<: *a", "<<: [*a, *b]", "!!python/object:os.system", "!!binary aGk=", "!!set {a, b}",
    "!!omap", "!tag ",
    "---\n", "...\n", "%YAML 1.1\n", "? ", "- ", ": ", "|\n  ", ">-\n  ", "{", "}", "[", "]", "# x", "\t", "~",
    "null", "true", "on",
    "1e-3", "0o17", "0x1f", "1_000", ".inf", ".nan", "2026-01-01", "2026-01-01T00:00:00Z", "12:30:45", "1" * 300,
    "a:b", "\\", "'", '"',
    "a.b.c", "reinforcement.steps", "objective", "clipped", "\n", "\n  ", "\n    ", "\x00", "\x85", "/", "a" * 300,
    "a/b", "..", "*",
)  # fmt: skip


def generate_text(choices: Choices) -> str:
    """Generate a text, random or from an existing recipe."""
    kind = choices.below(4)
    if kind == 0:
        return choices.text(WORDS, 30)
    lines = choices.one(_TEXTS).splitlines()
    if kind == 1:
        return _as_yaml(choices, "\n".join(lines))
    for _ in range(1 + choices.below(4)):
        at = choices.below(len(lines) + 1)
        how = choices.below(4)
        if how == 0:
            lines.insert(at, choices.one(_LINES))
        elif how == 1:
            lines.insert(at, choices.text(WORDS, 5))
        elif how == 2:
            del lines[at : at + 1]
        elif at < len(lines):
            place = choices.below(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + choices.text(WORDS, 2) + lines[at][place + choices.below(5) :]
    return "\n".join(lines)


def _as_yaml(choices: Choices, text: str) -> str:
    keys: Any = _plain(YAML(typ="safe").load(text))
    for _ in range(1 + choices.below(3)):
        place = keys
        while isinstance(place, dict) and place:
            key = choices.one(list(place))
            if isinstance(place[key], dict) and place[key] and choices.often(160):
                place = place[key]
                continue
            if choices.often(100):
                place[choices.name(WORDS)] = place.pop(key)
            else:
                place[key] = choices.value(WORDS, 2)
            break
    return choices.json(keys, WORDS)  # JSON is valid YAML


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def one(choices: Choices) -> None:
    """Run one input."""
    os.chdir(_folder)
    overrides = choices.some(lambda: choices.text((*WORDS, "="), 4), 3) if choices.often(80) else []
    choices.note("overrides", overrides)
    if choices.often(20):
        name: Any = choices.note("name", choices.text((*built_in_recipes(), *built_in_methods(), ".yaml", "/"), 3))
    else:
        text = choices.note("text", generate_text(choices))
        name = _folder / "mine.yaml"
        name.write_bytes(text.encode("utf-8", errors="surrogatepass" if choices.often(10) else "replace"))
    try:
        resolved = load_recipe(name, overrides)
        if choices.often(60):
            resolved = resolved.with_changes({choices.name(WORDS): choices.value(WORDS, 2)})
    except RecipeError as error:
        require(bool(str(error)) and "\n" not in str(error) and len(str(error)) < 3000, "no one line", repr(str(error)))
        return
    written = choices.note("written", resolved.dump())
    path = _folder / "again.yaml"
    path.write_text(written, encoding="utf-8")
    require(load_recipe(path).recipe == resolved.recipe, "a recipe that is another when it is read again", written)


def plant() -> None:
    """Plant a check that takes keys for sections."""
    honest = resolved_module.replace_aliases

    def careless(keys: Any) -> Any:
        if "training" in keys and not isinstance(keys["training"], dict):
            raise KeyError("planted")
        return honest(keys)

    vars(resolved_module)["replace_aliases"] = careless
