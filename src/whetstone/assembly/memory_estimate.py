"""Memory estimate of a run per device, before any model is loaded.

    weights            4 bytes per trained parameter; 4, or 2 in half precision, per frozen parameter
    the sampler's      the same again if it samples from a copy: in half precision, or while the weights change
    gradients          4 bytes per trained parameter
    optimizer states   8 bytes per trained parameter (AdamW) or 2 (8-bit); with a copy of the weights if offloaded
    reference, teacher 4 bytes per parameter

The estimate uses the recipe and the headers of weight files. Temporary memory has a separate upper bound: the KV cache
of all episodes and the activations of a forward pass. It shrinks if memory is scarce, so a run is rejected only for its
permanent memory.

Source of the activations of a layer: Korthikanti et al. 2022, arXiv:2205.05198, section 4, counted for gated layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from whetstone.assembly.member_recipes import member_recipes
from whetstone.assembly.model_size import ModelSize
from whetstone.assembly.placement import auxiliary_devices, policy_device
from whetstone.assembly.task_components import build_source
from whetstone.inference import cache_bytes
from whetstone.policies import BLOCK_SIZE, CPU, free_memory, in_dtype, resolve_model_folder, stored_weights
from whetstone.recipe import OptimizerSettings, Recipe, ReinforcementSettings, Resolved, TinySettings
from whetstone.tasks.built_in import SOURCES

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Memory of one component of a run on one device, such as the gradients."""

    what: str
    """Name of the component in reports."""
    bytes: int
    """Size in bytes."""
    device: torch.device
    """Device that holds the memory."""
    is_permanent: bool = True
    """Whether the memory is used during the whole run; otherwise it is temporary, and `bytes` is an upper bound."""


def estimate_policy_size(recipe: Recipe) -> ModelSize | None:
    """Return the size of a recipe's policy, from its configuration and file headers.

    None if the headers lack it.

    Raises:
        PolicyError: If there is no such model.
    """
    policy = recipe.policy
    if policy.path is None:
        return _of_tiny(policy.tiny or TinySettings())
    folder = resolve_model_folder(policy.path, revision=policy.revision, trust_remote_code=policy.trust_remote_code)
    return _of_folder(folder, trusted=policy.trust_remote_code)


def count_concurrent_episodes(resolved: Resolved) -> int:
    """Return an upper bound of the number of episodes that a run samples at the same time.

    It is `rollout.max_in_flight`, or less if neither the groups of reinforcement nor the held-out tasks are as many.
    Held-out tasks are counted for built-in task sources.
    """
    recipe = resolved.recipe
    limit, stage, evaluation = recipe.rollout.max_episodes, recipe.reinforcement, recipe.evaluation
    has_only_groups = list(recipe.own_stages) in (["reinforcement"], ["supervised", "reinforcement"])
    is_plain = recipe.rollout.strategy.name == "independent" and evaluation.strategy is None
    if stage is None or not has_only_groups or not is_plain or stage.sources or recipe.stages or recipe.policies:
        return limit
    sampled = (stage.admit_ahead + 1) * stage.tasks_per_step * recipe.rollout.group_size
    if sampled >= limit:
        return limit
    counts = [evaluation.episodes, *(suite.episodes or 0 for suite in evaluation.suites.values())]
    counts += [evaluation.interval_episodes] if evaluation.interval_steps is not None else []
    counts += [evaluation.validation_episodes] if stage.keep == "best" else []
    num_tasks = max(counts)
    if not evaluation.suites and recipe.tasks.source in SOURCES:  # tasks of a suite can have another source
        num_tasks = len(build_source(resolved, "tasks", recipe.tasks.options).held_out(num_tasks))
    return min(limit, max(sampled, num_tasks * evaluation.samples))


def estimate_memory_shares(resolved: Resolved, *, trains: bool) -> list[MemoryShare]:
    """Estimate the memory of each component of a run.

    Args:
        resolved: Recipe.
        trains: Whether the policy is trained, or only sampled.

    Returns:
        One entry per component; empty if the size of the policy is unknown.

    Raises:
        RecipeError: If the machine has no such device.
        PolicyError: If there is no such model.
    """
    return list(_all_shares(resolved, trains=trains))


def _all_shares(resolved: Resolved, *, trains: bool) -> Iterator[MemoryShare]:
    """Yield the memory of the policy and of all other members of `policies`."""
    for name, each in member_recipes(resolved).items():
        size, is_trained = estimate_policy_size(each.recipe), name not in _frozen_members(resolved)
        for share in _shares(each, size, trains=trains and is_trained) if size is not None else ():
            yield share if len(resolved.recipe.policies) < 2 else replace(share, what=f"{name}: {share.what}")


def _frozen_members(resolved: Resolved) -> set[str]:
    return {name for name, settings in resolved.recipe.policies.items() if not settings.trained}


def _shares(resolved: Resolved, size: ModelSize, *, trains: bool) -> Iterator[MemoryShare]:
    """Yield the memory of one policy: weights, training state and temporary memory."""
    recipe, device = resolved.recipe, policy_device(resolved)
    policy, stage, count = recipe.policy, largest_stage(recipe) if trains else None, size.parameters
    dtype = in_dtype(count, policy.dtype, device)
    short, lora = dtype != torch.float32, policy.lora
    trained = count if lora is None else size.count_lora_parameters(lora.rank)
    if lora is None:
        yield MemoryShare("weights", 4 * count, device)
    else:
        packed = count - 2 * size.vocabulary * size.hidden if lora.quantization is not None and size.layers else 0
        bits = max(0, packed) * (32 + 4 * BLOCK_SIZE) // BLOCK_SIZE
        weights = dtype.itemsize * (count - max(0, packed)) + bits // 8
        yield MemoryShare("weights", weights + 4 * trained, device)
    ahead = isinstance(stage, ReinforcementSettings) and stage.admit_ahead > 0
    if recipe.engine.name == "local" and (short or (ahead and lora is None)):
        copied = dtype.itemsize * count if lora is None or not (lora.dora or lora.quantization) else 0
        yield MemoryShare("the sampler's weights", copied, device)
    if stage is not None:
        yield MemoryShare("gradients", 4 * trained, device)
        if stage.optimizer_offload and device != CPU:
            yield MemoryShare("optimizer states with a copy of the weights", 12 * trained, CPU)
        else:
            yield MemoryShare("optimizer states", (2 if stage.optimizer == "adamw_8bit" else 8) * trained, device)
        yield from _auxiliary_memory(resolved, stage, size, device)
    if size.layers:
        if recipe.engine.name == "local":
            count = count_concurrent_episodes(resolved)
            rows = size.cache_bytes(count * size.context, dtype)
            room = cache_bytes(device, recipe.engine.options.get("cache_gib"))
            rows = rows if room is None else min(rows, room)
            yield MemoryShare(f"KV cache of {count} episodes", rows, device, is_permanent=False)
        if stage is not None:
            tokens = stage.micro_batch_tokens
            yield MemoryShare(
                f"a pass of {tokens:,} tokens", size.activation_bytes(tokens, stage), device, is_permanent=False
            )


def _auxiliary_memory(
    resolved: Resolved, stage: OptimizerSettings, size: ModelSize, device: torch.device
) -> Iterator[MemoryShare]:
    """Yield the memory of reference, teacher and process reward model."""
    recipe, places = resolved.recipe, auxiliary_devices(resolved, stage, device)
    models: dict[str, int] = {}
    refers = isinstance(stage, ReinforcementSettings) and recipe.has_reference
    if refers and (recipe.policy.lora is None or recipe.supervised is not None):
        models["reference"] = 4 * size.parameters
    if recipe.teacher is not None and recipe.teacher.path is not None:
        teacher_size = _of_folder(resolve_model_folder(recipe.teacher.path), trusted=False)
        models["teacher"] = 4 * teacher_size.parameters if teacher_size is not None else 0
    for name, taken in models.items():
        yield MemoryShare(f"the {name}", taken, places.storage_device(name))
        if name in places.offloaded:
            yield MemoryShare(f"the {name} in its forward pass", taken, places.computed[name], is_permanent=False)
    if recipe.implicit_prm is not None:
        yield MemoryShare("the process model", 16 * size.parameters, device)


def check_fits(resolved: Resolved, *, trains: bool) -> None:
    """Check that the permanent memory of a run fits into the free memory of each device.

    Args:
        resolved: Recipe.
        trains: Whether the policy is trained, or only sampled.

    Raises:
        RecipeError: If the memory does not fit, with the size and the settings that would fit; or if the machine has no
            such device.
        PolicyError: If there is no such model.
    """
    recipes = member_recipes(resolved)
    if all(each.recipe.policy.path is None for each in recipes.values()):  # a tiny model always fits
        return
    sizes = {name: estimate_policy_size(each.recipe) for name, each in recipes.items()}
    if None in sizes.values():
        return
    beyond = _first_overflow(_permanent_bytes(_all_shares(resolved, trains=trains)))
    if beyond is None:
        return
    device, needed, free = beyond
    place = "" if device == CPU else f" on {device}"
    counts = {name: f"{size.parameters / 1e9:.3g} billion parameters" for name, size in sizes.items() if size}
    models = " and ".join(f"{count} of {name}" if name else f"its {count}" for name, count in counts.items())
    problem = (
        f"{models} need {needed / _GIB:.3g} GiB{place} of permanent memory, but only {free / _GIB:.3g} GiB are free"
    )
    mends = []
    for mend, changes in _remedies(resolved):
        changed = _permanent_bytes(_all_shares(resolved.with_changes(changes), trains=trains))
        if _first_overflow(changed) is None:
            mends.append(f"{mend} takes {changed.get(device, changed.get(CPU, 0)) / _GIB:.3g} GiB")
    stage = largest_stage(resolved.recipe) if trains else None
    if mends and stage is not None and not stage.activation_checkpointing:
        name = next(reversed(resolved.recipe.own_stages))
        mends.append(f"{name}.activation_checkpointing: true reduces the temporary memory")
    wish = ", ".join(mends) if mends else "a smaller model, or a machine with more memory"
    raise resolved.error("policy.path", f"{problem}; {wish}")


def _remedies(resolved: Resolved) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (text, changed keys) of each setting that would reduce the memory."""
    recipe, policy = resolved.recipe, resolved.recipe.policy
    if policy.lora is None:
        yield "policy.lora: {rank: 16}", {"policy.lora": {"rank": 16}}
    if policy.dtype == "float32":
        yield "policy.dtype: bfloat16", {"policy.dtype": "bfloat16"}
    if policy_device(resolved) == CPU:
        return
    stage, name = largest_stage(recipe), next(reversed(recipe.own_stages), "reinforcement")
    if stage is not None and policy.lora is None and not stage.optimizer_offload:
        offload = f"{name}.optimizer_offload"
        yield f"{offload}: true", {offload: True, f"{name}.optimizer": "adamw"}
        if stage.optimizer == "adamw":
            yield f"{name}.optimizer: adamw_8bit", {f"{name}.optimizer": "adamw_8bit"}
    if isinstance(stage, ReinforcementSettings) and recipe.has_reference and not stage.reference_offload:
        yield "reinforcement.reference_offload: true", {"reinforcement.reference_offload": True}
    yield "policy.device: cpu", {"policy.device": "cpu"}


def largest_stage(recipe: Recipe) -> OptimizerSettings | None:
    """Return the settings of the last stage, which needs the most memory.

    None for a recipe without stages.
    """
    return next(reversed(recipe.own_stages.values()), None)


def _permanent_bytes(shares: Iterator[MemoryShare]) -> dict[torch.device, int]:
    """Sum the permanent memory by device, in bytes."""
    totals: defaultdict[torch.device, int] = defaultdict(int)
    for share in shares:
        totals[share.device] += share.bytes if share.is_permanent else 0
    return dict(totals)


def _first_overflow(required: Mapping[torch.device, int]) -> tuple[torch.device, int, int] | None:
    """Return (device, required bytes, free bytes) of the first device that is too small; None if all fit."""
    for device, needed in required.items():
        free = free_memory(device)
        if free is not None and needed > free:
            return device, needed, free
    return None


def _of_tiny(tiny: TinySettings) -> ModelSize:
    """Compute the size of a tiny model from its settings."""
    width, inner = tiny.hidden_size, tiny.intermediate_size
    of_layer = 4 * width * width + 3 * width * inner + 2 * width
    count = tiny.vocab_size * width + tiny.num_layers * of_layer + width
    return ModelSize(count, tiny.num_layers, width, inner, width, tiny.vocab_size, tiny.context_length)


def _of_folder(folder: Path, *, trusted: bool) -> ModelSize | None:
    """Read the size of a model from its configuration and file headers.

    None if the folder has no weights. Fields other than `parameters` are 0 if the configuration cannot be read.
    """
    stored = stored_weights(folder)
    if stored is None:
        return None
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trusted).get_text_config()
        settings = config.to_dict()  # settings that only some models have
        heads = config.num_attention_heads
        width = settings.get("head_dim") or config.hidden_size // heads
        return ModelSize(
            stored.parameters,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=settings.get("intermediate_size") or 4 * config.hidden_size,
            keys=width * (settings.get("num_key_value_heads") or heads),
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ImportError):
        # the error appears when the model is loaded
        return ModelSize(stored.parameters)
