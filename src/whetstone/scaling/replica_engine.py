"""Which engine is in a replica? The recipe's, at an address of its own where replicas have some, over as many GPUs as
`scale` says."""

from __future__ import annotations

from typing import Any

from whetstone.assembly.assembly import Assembly
from whetstone.recipe import Part


def engine_of(assembly: Assembly, number: int) -> Part:
    """That of the replica of this number."""
    recipe = assembly.resolved.recipe
    options: dict[str, Any] = dict(recipe.engine.options)
    if recipe.scale.engine_addresses:
        options["address"] = recipe.scale.engine_addresses[number]
    if recipe.scale.tensor_parallel > 1:
        word = "tensor_parallel_size" if recipe.engine.name == "vllm" else "tp_size"
        options["options"] = {word: recipe.scale.tensor_parallel, **options.get("options", {})}
    return Part(name=recipe.engine.name, **options)
