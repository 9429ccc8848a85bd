"""Engine settings of a replica: the recipe's engine, with an individual address and the tensor parallel size."""

from __future__ import annotations

from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.recipe import Part


def get_engine_settings(assembly: RunComponents, number: int) -> Part:
    """Return the engine settings of the replica with this index."""
    recipe = assembly.resolved.recipe
    options: dict[str, Any] = dict(recipe.engine.options)
    if recipe.scale.engine_addresses:
        options["address"] = recipe.scale.engine_addresses[number]
    if recipe.scale.tensor_parallel > 1:
        word = "tensor_parallel_size" if recipe.engine.name == "vllm" else "tp_size"
        options["options"] = {word: recipe.scale.tensor_parallel, **options.get("options", {})}
    return Part(name=recipe.engine.name, **options)
