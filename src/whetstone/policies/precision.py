"""In which numbers is a policy computed, and in which are its weights held?

    computed, sampled and learned alike    float32, bfloat16 or float16
    weights that are trained               float32, whatever is computed in
    weights that are not (adapters' base)  what is computed in

Easy to get wrong: a learning rate of 1e-6 moves a weight by less than bfloat16 can tell apart. Weights that are trained
are therefore held in float32, and the sampler has them rounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from whetstone.policies.adapters import has_adapters
from whetstone.policies.policy import Policy

Precision = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 20_000_000
"""Parameters below which products are too small for shorter numbers to save anything."""


def suitable_dtype(parameters: int, device: torch.device) -> torch.dtype:
    """What suits a model of so many parameters on a device: bfloat16 where the device has instructions for it."""
    if parameters < SMALL:
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "cpu":
        there = torch.cpu.get_capabilities()
        quick = any(there.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
        return torch.bfloat16 if quick else torch.float32
    return torch.float32


def in_dtype(parameters: int, wanted: Precision, device: torch.device) -> torch.dtype:
    """What a model of so many parameters is computed in on a device, where this is wanted."""
    return suitable_dtype(parameters, device) if wanted == "auto" else _DTYPES[wanted]


def in_precision(policy: Policy, wanted: Precision) -> Policy:
    """The policy, to be computed as wanted; its weights are put into the numbers they are to be held in, in place.

    Args:
        wanted: `auto`: what suits the model and the device it is on.
    """
    device = next(policy.model.parameters()).device
    of_model = sum(p.numel() for name, p in policy.model.named_parameters() if "lora_" not in name)
    adapted = has_adapters(policy.model)
    dtype = in_dtype(of_model, wanted, device)
    for parameter in policy.model.parameters():
        held = dtype if adapted and not parameter.requires_grad else torch.float32
        parameter.data = parameter.data.to(held)  # one at a time: never twice the model
    return replace(policy, dtype=dtype)
