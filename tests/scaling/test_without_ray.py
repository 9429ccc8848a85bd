"""A run in one process imports nothing of Ray."""

import ast
from pathlib import Path

import whetstone

SOURCE = Path(whetstone.__file__).parent
ON_RAY = {"whetstone.scaling.ray_actors", "whetstone.scaling.ray_cluster"}
"""Modules that import Ray, and are imported by name where a recipe asks for it."""


def imported_at_the_top(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def module_of(path):
    return ".".join(("whetstone", *path.relative_to(SOURCE).with_suffix("").parts))


def test_nothing_imports_ray_but_what_is_imported_where_a_recipe_names_it():
    tops = {module_of(path): set(imported_at_the_top(path)) for path in SOURCE.rglob("*.py")}
    assert {name for name, found in tops.items() if any(f.partition(".")[0] == "ray" for f in found)} == ON_RAY
    assert {name for name, found in tops.items() if found & ON_RAY} <= ON_RAY
