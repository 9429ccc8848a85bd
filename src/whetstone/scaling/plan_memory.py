"""Memory of each GPU of the learner and of a replica, and the smallest number of GPUs that fits.

    learner   4 bytes of weights, 4 of gradients, 8 of optimizer states (2 in eight bits) and 4 of a reference per
              parameter, over all GPUs of the group (FSDP2 shards all of it); two layers gathered in 2 bytes; one pass
    replica   2 bytes of weights per parameter over its GPUs; the KV cache in the remaining memory

The memory of a pass is that of `assembly/memory_estimate.py`, an upper bound. A tenth of a GPU stays free.

Note:
    Sharded memory shrinks with the number of GPUs, the memory of a pass does not: more GPUs do not make room for longer
    passes.

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
"""Minimum number of sequences of a replica; one with room for fewer is spread over more GPUs."""
_SPREADS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Memory of one GPU of the learner, by use."""

    gpus: int
    """Number of GPUs of the learner."""
    parts: Mapping[str, float]
    """Memory in GiB by use, such as weights and gradients."""

    @property
    def total(self) -> float:
        """Total memory of one GPU in GiB."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Memory of one GPU of an engine replica."""

    tensor_parallel: int
    """Number of GPUs of the replica."""
    weights: float
    """Memory of the weights in GiB."""
    keys: float
    """Remaining memory for the KV cache in GiB."""
    sequences: int
    """Number of sequences of maximum length whose KV cache fits."""


def trained_parameters(size: ModelSize, recipe: Recipe) -> int:
    """Return the number of trainable parameters: those of the LoRA adapters, or all."""
    return size.parameters if recipe.policy.lora is None else size.count_lora_parameters(recipe.policy.lora.rank)


def learner_memory(
    size: ModelSize, recipe: Recipe, settings: ReinforcementSettings, gpus: int, together: int = 1
) -> LearnerMemory:
    """Compute the memory of each GPU of a learner with `gpus` GPUs.

    Args:
        size: Size of the model.
        recipe: Recipe of the run.
        settings: Settings of the reinforcement learning stage.
        gpus: Number of GPUs.
        together: Number of GPUs that compute each layer together. Their memory of a pass is counted as if each computed
            all of it, which is an upper bound.
    """
    lora = recipe.policy.lora is not None
    shard = 1 / (gpus * _GIB)
    # embeddings, and an output layer with separate weights, are not sharded within a group
    replicated = 2 * (together - 1) * size.vocabulary * size.hidden
    parameters = size.parameters + replicated
    trained = trained_parameters(size, recipe) + (0 if lora else replicated)
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
    """Return whether the memory fits into nine tenths of a GPU."""
    return memory.total <= gpu.memory_gib * _USABLE


def replica_memory(size: ModelSize, gpu: Gpu, tensor_parallel: int, context: float) -> ReplicaMemory:
    """Compute the memory of each GPU of an engine replica.

    Args:
        size: Size of the model.
        gpu: Type of the GPUs.
        tensor_parallel: Number of GPUs of the replica.
        context: Maximum number of tokens of a sequence.
    """
    weights = 2 * size.parameters / tensor_parallel / _GIB
    left = gpu.memory_gib * _USABLE - weights
    each = 4 * size.layers * size.keys * context / tensor_parallel / _GIB
    return ReplicaMemory(tensor_parallel, weights, left, max(0, int(left / each)) if each else 0)


def smallest_replica(size: ModelSize, gpu: Gpu, gpus: int, context: float) -> ReplicaMemory:
    """Find the replica with the fewest GPUs that holds the model and at least 16 sequences, or at least one.

    Raises:
        RecipeError: The model fits on no number of GPUs of one node.
    """
    tried = [replica_memory(size, gpu, spread, context) for spread in _SPREADS if spread <= gpus]
    for replica in tried:
        if replica.sequences >= _FEWEST_SEQUENCES:
            return replica
    for replica in tried:
        if replica.sequences >= 1:
            return replica
    last = tried[-1]
    raise RecipeError(
        f"{size.parameters / 1e9:.3g} billion parameters fit on no replica: over {last.tensor_parallel} {gpu.name} its "
        f"weights take {last.weights:.3g} GiB of each one's {gpu.memory_gib:g} GiB, and a sequence of {context:,.0f} "
        "tokens has no room; use a smaller model, or GPUs with more memory"
    )


def fitting_learner(
    size: ModelSize, recipe: Recipe, settings: ReinforcementSettings, gpu: Gpu, gpus: int
) -> tuple[LearnerMemory, ReinforcementSettings]:
    """Find the learner with the fewest GPUs, and the settings with which it fits.

    The settings are the recipe's own, or those that reduce the memory of a pass: activation checkpointing, then smaller
    micro-batches.

    Raises:
        RecipeError: The learner fits on no number of GPUs up to `gpus`; the message lists the memory by use.
    """
    every = list(_smaller(settings))
    for tried in every:
        for count in range(1, gpus + 1):
            memory = learner_memory(size, recipe, tried, count)
            if learner_fits(memory, gpu):
                return memory, tried
    most = learner_memory(size, recipe, every[-1], gpus)
    listing = ", ".join(f"{name} {gib:.3g}" for name, gib in most.parts.items())
    remedies = ["policy.lora: {rank: 16}"] if recipe.policy.lora is None else []
    if not settings.optimizer_offload and recipe.policy.lora is None:
        remedies.append("reinforcement.optimizer_offload: true")
    raise RecipeError(
        f"{size.parameters / 1e9:.3g} billion parameters cannot be trained on {gpus} {gpu.name}: each would hold "
        f"{most.total:.3g} GiB ({listing}) and has {gpu.memory_gib * _USABLE:.3g} to use; try "
        f"{', '.join([*remedies, 'more GPUs'])}"
    )


def _smaller(settings: ReinforcementSettings) -> Iterator[ReinforcementSettings]:
    """Yield the settings, then settings with successively smaller passes."""
    yield settings
    settings = settings.model_copy(update={"activation_checkpointing": True})
    yield settings
    while settings.micro_batch_tokens > 1024:
        settings = settings.model_copy(update={"micro_batch_tokens": settings.micro_batch_tokens // 2})
        yield settings
