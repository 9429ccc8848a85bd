"""A run in one process imports no module of Ray."""

import ast
from pathlib import Path

import whetstone

SOURCE = Path(whetstone.__file__).parent
ON_RAY = {"whetstone.scaling.ray_actors", "whetstone.scaling.ray_cluster"}
"""Modules that import Ray; imported by name if a recipe uses it."""


def imported_at_the_top(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def module_of(path):
    return ".".join(("whetstone", *path.relative_to(SOURCE).with_suffix("").parts))


def test_ray_is_imported_only_by_components_that_a_recipe_names():
    tops = {module_of(path): set(imported_at_the_top(path)) for path in SOURCE.rglob("*.py")}
    assert {name for name, imports in tops.items() if any(f.partition(".")[0] == "ray" for f in imports)} == ON_RAY
    assert {name for name, imports in tops.items() if imports & ON_RAY} <= ON_RAY
