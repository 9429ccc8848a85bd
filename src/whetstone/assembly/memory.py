"""Does a pretrained policy fit into memory? Counted before it is loaded, from the heads of its files.

    all weights    4 (weights) + 4 (gradient) + 8 (AdamW) bytes a parameter, 2 more for the sampler's where it is in
                   shorter numbers
    adapters       2 or 4 bytes a parameter; what is trained beside it is little
    a reference    4 bytes a parameter, where the policy has no adapters to switch off

Activations come on top and are bounded by `micro_batch_tokens`; they are not counted here.
"""

from __future__ import annotations

from pathlib import Path

import torch

from whetstone.policies import found_model, in_dtype, stored_weights
from whetstone.recipe import OptimizerSettings, PolicySettings, Recipe, ReinforcementSettings, Resolved

_GIB = 2**30
_MEMORY = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_fits(resolved: Resolved, *, trains: bool) -> None:
    """See that the recipe's policy can be held; one built from nothing always can.

    Args:
        trains: Whether it is trained, or only sampled.

    Raises:
        RecipeError: It is too large; the message says how large, and what would fit.
        PolicyError: There is no such model.
    """
    policy = resolved.recipe.policy
    if policy.path is None:
        return
    folder = found_model(policy.path, revision=policy.revision, trust_remote_code=policy.trust_remote_code)
    stored, free = stored_weights(folder), free_bytes()
    if stored is None or free is None:
        return
    said = _too_large(stored.parameters, free, policy, _largest_stage(resolved.recipe) if trains else None)
    if said:
        raise resolved.error("policy.path", said)


def _largest_stage(recipe: Recipe) -> OptimizerSettings | None:
    return recipe.reinforcement or recipe.supervised


def _too_large(parameters: int, free: int, policy: PolicySettings, stage: OptimizerSettings | None) -> str:
    """What to say of a model that does not fit into so many bytes; empty where it does."""
    wanted = "float32" if policy.dtype == "auto" and policy.lora is not None else policy.dtype
    short = in_dtype(parameters, wanted, torch.device("cpu")) != torch.float32
    base, shorter = parameters * (2 if short else 4), parameters * 2
    needed = base if policy.lora is not None else _of_all_weights(parameters, stage, short=short)
    if needed <= free:
        return ""
    said = (
        f"its {parameters / 1e9:.3g} billion parameters take {needed / _GIB:.3g} GiB before a token is computed, and "
        f"{free / _GIB:.3g} GiB are free"
    )
    mends = []
    if policy.lora is None and base <= free:
        mends.append(f"policy.lora: {{rank: 16}} takes {base / _GIB:.3g} GiB")
    elif not short and shorter <= free:
        adapters = "" if policy.lora is not None else " with policy.lora: {rank: 16}"
        mends.append(f"policy.dtype: bfloat16{adapters} takes {shorter / _GIB:.3g} GiB")
    if mends and stage is not None and not stage.activation_checkpointing:
        mends.append("activation_checkpointing: true keeps what comes on top small")
    return f"{said}; {', '.join(mends)}" if mends else f"{said}; a smaller model, or a machine with more memory"


def _of_all_weights(parameters: int, stage: OptimizerSettings | None, *, short: bool) -> int:
    if stage is None:
        return parameters * (4 + (2 if short else 0))
    states = 2 if stage.optimizer == "adamw_8bit" else 8
    referred = 4 if isinstance(stage, ReinforcementSettings) and stage.reference_kl > 0 else 0
    return parameters * (4 + 4 + states + referred + (2 if short else 0))


def free_bytes() -> int | None:
    """What this process may still take: of the machine's memory, and of its container's; None where nobody says."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    for limit in _LIMITS:
        if limit.is_file() and (said := limit.read_text().strip()).isdigit():
            free = min(free, int(said))
    return free
