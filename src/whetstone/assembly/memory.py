"""What will a run hold, and where? Counted before anything is loaded, from the heads of files and from the recipe.

    weights            4 bytes a parameter that is trained; 4, or 2 where it is computed in shorter numbers, of others
    the sampler's      as many again where it draws from a copy: in shorter numbers, or while the weights change
    gradients          4 bytes a trained parameter
    optimiser states   8 (AdamW), 2 (in eight bits); with a copy of the weights on the CPU where they are offloaded
    reference, teacher 4 bytes a parameter

What comes and goes is bounded besides: keys and values of all episodes at once, and the activations of a forward pass.
They shrink where there is no room, so a run is refused for what it holds all along alone.

Source of what a layer keeps: Korthikanti et al. 2022, arXiv:2205.05198, section 4, counted for gated layers.
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
from whetstone.assembly.placement import auxiliary_devices, device_of
from whetstone.inference import cache_bytes
from whetstone.policies import CPU, found_model, free_memory, in_dtype, stored_weights
from whetstone.recipe import OptimizerSettings, Recipe, ReinforcementSettings, Resolved, TinySettings

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What one thing takes."""

    what: str
    bytes: int
    device: torch.device
    held: bool = True
    """Whether all along; else it comes and goes, and this is a bound."""


def size_of(recipe: Recipe) -> ModelSize | None:
    """The size of a recipe's policy; None where it cannot be counted unread.

    Raises:
        PolicyError: There is no such model.
    """
    policy = recipe.policy
    if policy.path is None:
        return _of_tiny(policy.tiny or TinySettings())
    folder = found_model(policy.path, revision=policy.revision, trust_remote_code=policy.trust_remote_code)
    return _of_folder(folder, trusted=policy.trust_remote_code)


def memory_plan(resolved: Resolved, *, trains: bool) -> list[MemoryShare]:
    """What a run holds, thing by thing; empty where the policy cannot be counted unread.

    Args:
        trains: Whether it is trained, or only sampled.

    Raises:
        RecipeError: The machine has no such device.
        PolicyError: There is no such model.
    """
    return list(_all_shares(resolved, trains=trains))


def _all_shares(resolved: Resolved, *, trains: bool) -> Iterator[MemoryShare]:
    """Memory of the policy and of all other members of `policies`."""
    for name, each in member_recipes(resolved).items():
        size, is_trained = size_of(each.recipe), name not in _frozen_members(resolved)
        for share in _shares(each, size, trains=trains and is_trained) if size is not None else ():
            yield share if len(resolved.recipe.policies) < 2 else replace(share, what=f"{name}: {share.what}")


def _frozen_members(resolved: Resolved) -> set[str]:
    return {name for name, settings in resolved.recipe.policies.items() if not settings.trained}


def _shares(resolved: Resolved, size: ModelSize, *, trains: bool) -> Iterator[MemoryShare]:
    recipe, device = resolved.recipe, device_of(resolved)
    policy, stage, count = recipe.policy, largest_stage(recipe) if trains else None, size.parameters
    dtype = in_dtype(count, policy.dtype, device)
    short, lora = dtype != torch.float32, policy.lora
    trained = count if lora is None else size.adapters(lora.rank)
    if lora is None:
        yield MemoryShare("weights", 4 * count, device)
    else:
        yield MemoryShare("weights", dtype.itemsize * count + 4 * trained, device)
    ahead = isinstance(stage, ReinforcementSettings) and stage.admit_ahead > 0
    if recipe.engine.name == "local" and (short or (ahead and lora is None)):
        copied = dtype.itemsize * count if lora is None or not lora.dora else 0
        yield MemoryShare("the sampler's weights", copied, device)
    if stage is not None:
        yield MemoryShare("gradients", 4 * trained, device)
        if stage.optimizer_offload and device != CPU:
            yield MemoryShare("optimiser states with a copy of the weights", 12 * trained, CPU)
        else:
            yield MemoryShare("optimiser states", (2 if stage.optimizer == "adamw_8bit" else 8) * trained, device)
        yield from _beside(resolved, stage, size, device)
    if size.layers:
        if recipe.engine.name == "local":
            rows = size.cache_bytes(recipe.rollout.max_in_flight * size.context, dtype)
            room = cache_bytes(device, recipe.engine.options.get("cache_gib"))
            rows = rows if room is None else min(rows, room)
            said = f"keys and values of {recipe.rollout.max_in_flight} episodes"
            yield MemoryShare(said, rows, device, held=False)
        if stage is not None:
            tokens = stage.micro_batch_tokens
            yield MemoryShare(f"a pass of {tokens:,} tokens", size.activation_bytes(tokens, stage), device, held=False)


def _beside(
    resolved: Resolved, stage: OptimizerSettings, size: ModelSize, device: torch.device
) -> Iterator[MemoryShare]:
    """Of the models beside the policy."""
    recipe, places = resolved.recipe, auxiliary_devices(resolved, stage, device)
    models: dict[str, int] = {}
    refers = isinstance(stage, ReinforcementSettings) and recipe.has_reference
    if refers and (recipe.policy.lora is None or recipe.supervised is not None):
        models["reference"] = 4 * size.parameters
    if recipe.teacher is not None and recipe.teacher.path is not None:
        taught = _of_folder(found_model(recipe.teacher.path), trusted=False)
        models["teacher"] = 4 * taught.parameters if taught is not None else 0
    for name, taken in models.items():
        yield MemoryShare(f"the {name}", taken, places.home(name))
        if name in places.offloaded:
            yield MemoryShare(f"the {name} in its pass", taken, places.computed[name], held=False)
    if recipe.implicit_prm is not None:
        yield MemoryShare("the process model", 16 * size.parameters, device)


def check_fits(resolved: Resolved, *, trains: bool) -> None:
    """See that what a run holds all along fits.

    Args:
        trains: Whether it is trained, or only sampled.

    Raises:
        RecipeError: It does not; the message says how large it is, and what would fit. Or there is no such device.
        PolicyError: There is no such model.
    """
    recipes = member_recipes(resolved)
    if all(each.recipe.policy.path is None for each in recipes.values()):  # a tiny model always fits
        return
    sizes = {name: size_of(each.recipe) for name, each in recipes.items()}
    if None in sizes.values():
        return
    beyond = _beyond(_held(_all_shares(resolved, trains=trains)))
    if beyond is None:
        return
    device, needed, free = beyond
    there = "" if device == CPU else f" on {device}"
    counts = {name: f"{size.parameters / 1e9:.3g} billion parameters" for name, size in sizes.items() if size}
    models = " and ".join(f"{count} of {name}" if name else f"its {count}" for name, count in counts.items())
    said = (
        f"{models} take {needed / _GIB:.3g} GiB{there} before a token is computed, and {free / _GIB:.3g} GiB are free"
    )
    mends = []
    for mend, changes in _mends(resolved):
        changed = _held(_all_shares(resolved.with_changes(changes), trains=trains))
        if _beyond(changed) is None:
            mends.append(f"{mend} takes {changed.get(device, changed.get(CPU, 0)) / _GIB:.3g} GiB")
    stage = largest_stage(resolved.recipe) if trains else None
    if mends and stage is not None and not stage.activation_checkpointing:
        mends.append("activation_checkpointing: true keeps what comes on top small")
    wish = ", ".join(mends) if mends else "a smaller model, or a machine with more memory"
    raise resolved.error("policy.path", f"{said}; {wish}")


def _mends(resolved: Resolved) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(what to write, the keys that change) of each way to hold less."""
    recipe, policy = resolved.recipe, resolved.recipe.policy
    if policy.lora is None:
        yield "policy.lora: {rank: 16}", {"policy.lora": {"rank": 16}}
    if policy.dtype == "float32":
        yield "policy.dtype: bfloat16", {"policy.dtype": "bfloat16"}
    if device_of(resolved) == CPU:
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
    """The stage that holds most."""
    return next(reversed(recipe.own_stages.values()), None)


def _held(shares: Iterator[MemoryShare]) -> dict[torch.device, int]:
    """Bytes held all along, by device."""
    found: defaultdict[torch.device, int] = defaultdict(int)
    for share in shares:
        found[share.device] += share.bytes if share.held else 0
    return dict(found)


def _beyond(held: Mapping[torch.device, int]) -> tuple[torch.device, int, int] | None:
    """(a device, what is to be held there, what is free) of the first that has less; None where all have enough."""
    for device, needed in held.items():
        free = free_memory(device)
        if free is not None and needed > free:
            return device, needed, free
    return None


def _of_tiny(tiny: TinySettings) -> ModelSize:
    width, inner = tiny.hidden_size, tiny.intermediate_size
    of_layer = 4 * width * width + 3 * width * inner + 2 * width
    count = tiny.vocab_size * width + tiny.num_layers * of_layer + width
    return ModelSize(count, tiny.num_layers, width, inner, width, tiny.vocab_size, tiny.context_length)


def _of_folder(folder: Path, *, trusted: bool) -> ModelSize | None:
    stored = stored_weights(folder)
    if stored is None:
        return None
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trusted).get_text_config()
        said = config.to_dict()  # what only some kinds of model say
        heads = config.num_attention_heads
        width = said.get("head_dim") or config.hidden_size // heads
        return ModelSize(
            stored.parameters,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=said.get("intermediate_size") or 4 * config.hidden_size,
            keys=width * (said.get("num_key_value_heads") or heads),
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ImportError):
        # whoever loads it says what is wrong
        return ModelSize(stored.parameters)
