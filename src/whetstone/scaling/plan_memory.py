"""What does each GPU hold, of the learner's group and of a replica? And on how few does it fit?

    learner   4 bytes of weights, 4 of gradients, 8 of optimiser states (2 in eight bits) and 4 of a reference a
              parameter, over all GPUs of the group (FSDP2 shards all of it); two layers gathered in 2 bytes; one pass
    replica   2 bytes of weights a parameter over its GPUs; keys and values in what is left

What a pass takes is that of `assembly/memory.py`, an upper bound. A tenth of a GPU stays free.

Easy to get wrong: what is sharded shrinks with the group, a pass does not: more GPUs do not make room for longer ones.

Source: Zhao et al. 2023, arXiv:2304.11277 (FSDP), section 3; Kwon et al. 2023, arXiv:2309.06180, for keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whetstone.assembly.model_size import ModelSize
from whetstone.errors import RecipeError
from whetstone.recipe import Recipe, ReinforcementSettings
from whetstone.scaling.plan_hardware import Gpu

_GIB = 2**30
_USABLE = 0.9
_FEWEST_SEQUENCES = 16
"""A replica with room for fewer is spread over more GPUs."""
_SPREADS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Of one GPU of the group."""

    gpus: int
    parts: Mapping[str, float]
    """GiB by what takes them."""

    @property
    def total(self) -> float:
        """GiB."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Of one GPU of a replica."""

    tensor_parallel: int
    weights: float
    """GiB."""
    keys: float
    """GiB that are left for keys and values."""
    sequences: int
    """That fit with all they can come to."""


def trained_parameters(size: ModelSize, recipe: Recipe) -> int:
    """Those that have a gradient."""
    return size.parameters if recipe.policy.lora is None else size.adapters(recipe.policy.lora.rank)


def learner_memory(
    size: ModelSize, recipe: Recipe, settings: ReinforcementSettings, gpus: int, together: int = 1
) -> LearnerMemory:
    """What each GPU of a group of so many holds.

    Args:
        together: GPUs that compute each layer together. What they keep of a pass is counted as if each computed all of
            it, which is more than they do.
    """
    lora = recipe.policy.lora is not None
    shard = 1 / (gpus * _GIB)
    # embeddings, and an output layer where it is another, are whole in each group
    again = 2 * (together - 1) * size.vocabulary * size.hidden
    parameters = size.parameters + again
    trained = trained_parameters(size, recipe) + (0 if lora else again)
    optimizer = 2 if settings.optimizer == "adamw_8bit" else 8
    parts = {
        "weights": (2 * parameters + 4 * trained if lora else 4 * trained) * shard,
        "gradients": 4 * trained * shard,
        "optimiser": 0.0 if settings.optimizer_offload else optimizer * trained * shard,
    }
    if recipe.has_reference and not lora and not settings.reference_offload:
        parts["reference"] = 4 * parameters * shard
    if gpus > 1 and size.layers:
        parts["gathered layers"] = 2 * 2 * size.parameters / size.layers / together / _GIB
    parts[f"a pass of {settings.micro_batch_tokens:,} tokens"] = (
        size.activation_bytes(settings.micro_batch_tokens, settings) / _GIB
    )
    return LearnerMemory(gpus, parts)


def learner_fits(memory: LearnerMemory, gpu: Gpu) -> bool:
    """Whether a GPU has so much to use."""
    return memory.total <= gpu.memory_gib * _USABLE


def replica_memory(size: ModelSize, gpu: Gpu, tensor_parallel: int, context: float) -> ReplicaMemory:
    """What each GPU of a replica holds.

    Args:
        context: Tokens a sequence may come to.
    """
    weights = 2 * size.parameters / tensor_parallel / _GIB
    left = gpu.memory_gib * _USABLE - weights
    each = 4 * size.layers * size.keys * context / tensor_parallel / _GIB
    return ReplicaMemory(tensor_parallel, weights, left, max(0, int(left / each)) if each else 0)


def smallest_replica(size: ModelSize, gpu: Gpu, gpus: int, context: float) -> ReplicaMemory:
    """On as few GPUs as hold the model with some sequences.

    Raises:
        RecipeError: On none up to a node's.
    """
    tried = [replica_memory(size, gpu, spread, context) for spread in _SPREADS if spread <= gpus]
    for found in tried:
        if found.sequences >= _FEWEST_SEQUENCES:
            return found
    for found in tried:
        if found.sequences >= 1:
            return found
    last = tried[-1]
    raise RecipeError(
        f"{size.parameters / 1e9:.3g} billion parameters fit on no replica: over {last.tensor_parallel} {gpu.name} its "
        f"weights take {last.weights:.3g} GiB of each one's {gpu.memory_gib:g} GiB, and a sequence of {context:,.0f} "
        "tokens has no room; a smaller model, or GPUs with more memory"
    )


def fitting_learner(
    size: ModelSize, recipe: Recipe, settings: ReinforcementSettings, gpu: Gpu, gpus: int
) -> tuple[LearnerMemory, ReinforcementSettings]:
    """On as few GPUs as it fits on, and the settings it fits with: the recipe's own, or those that keep a pass small.

    Raises:
        RecipeError: On none up to `gpus`; the message says what takes how much.
    """
    every = list(_smaller(settings))
    for tried in every:
        for count in range(1, gpus + 1):
            found = learner_memory(size, recipe, tried, count)
            if learner_fits(found, gpu):
                return found, tried
    most = learner_memory(size, recipe, every[-1], gpus)
    said = ", ".join(f"{name} {gib:.3g}" for name, gib in most.parts.items())
    mends = ["policy.lora: {rank: 16}"] if recipe.policy.lora is None else []
    if not settings.optimizer_offload and recipe.policy.lora is None:
        mends.append("reinforcement.optimizer_offload: true")
    raise RecipeError(
        f"{size.parameters / 1e9:.3g} billion parameters cannot be trained on {gpus} {gpu.name}: each would hold "
        f"{most.total:.3g} GiB ({said}) and has {gpu.memory_gib * _USABLE:.3g} to use; "
        f"{', '.join([*mends, 'more GPUs'])}"
    )


def _smaller(settings: ReinforcementSettings) -> Iterator[ReinforcementSettings]:
    """The settings, and those whose passes take less, one after the other."""
    yield settings
    settings = settings.model_copy(update={"activation_checkpointing": True})
    yield settings
    while settings.micro_batch_tokens > 1024:
        settings = settings.model_copy(update={"micro_batch_tokens": settings.micro_batch_tokens // 2})
        yield settings
