"""In which numbers is a policy computed, and in which are its weights held?

    computed, sampled and learned alike    float32, bfloat16 or float16
    weights that are trained               float32, whatever is computed in
    weights that are not (adapters' base)  what is computed in

Easy to get wrong: a learning rate of 1e-6 moves a weight by less than bfloat16 can tell apart. Weights that are trained
are therefore held in float32, and the sampler has them rounded.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Literal

import torch

from whetstone.errors import PolicyError
from whetstone.policies.adapters import has_adapters
from whetstone.policies.devices import described, of_module
from whetstone.policies.policy import Policy

Precision = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 20_000_000
"""Parameters below which products are too small for shorter numbers to save anything."""


def suitable_dtype(parameters: int, device: torch.device) -> torch.dtype:
    """What suits a model of so many parameters on a device: bfloat16 where the device has instructions for it."""
    if parameters < SMALL:
        return torch.float32
    if _has_bfloat16(device):
        return torch.bfloat16
    return torch.float16 if device.type == "cuda" else torch.float32


def in_dtype(parameters: int, wanted: Precision, device: torch.device) -> torch.dtype:
    """What a model of so many parameters is computed in on a device, where this is wanted."""
    return suitable_dtype(parameters, device) if wanted == "auto" else _DTYPES[wanted]


def check_dtype(wanted: Precision, device: torch.device) -> None:
    """See that a device has the numbers that are wanted of it. A CPU has all, some without being quick at them.

    Raises:
        PolicyError: It has not.
    """
    says = device.type != "cpu" and of_module(device, "is_bf16_supported") is not None
    if wanted == "bfloat16" and says and not _has_bfloat16(device):
        raise PolicyError(f"bfloat16: {described(device)} has no instructions for it; float16 or float32")


def _has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for it."""
    if device.type == "cpu":
        there = torch.cpu.get_capabilities()
        return any(there.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    ask, using = of_module(device, "is_bf16_supported"), of_module(device, "device")
    if ask is None:
        return False
    with using(device) if using is not None else contextlib.nullcontext():  # it asks the one in use
        return bool(ask(including_emulation=False))


def in_precision(policy: Policy, wanted: Precision) -> Policy:
    """The policy, to be computed as wanted; its weights are put into the numbers they are to be held in, in place.

    Args:
        wanted: `auto`: what suits the model and the device it is on.

    Raises:
        PolicyError: Its weights are quantised: as numbers they mean nothing without their scales.
    """
    packed = next(((name, p.dtype) for name, p in policy.model.named_parameters() if p.element_size() == 1), None)
    if packed is not None:
        raise PolicyError(
            f"{policy.tokenizer.name_or_path or 'the model'}: its weights are quantised ({packed[0]} is "
            f"{str(packed[1]).removeprefix('torch.')}); a policy's are not: dequantise it, or name the model it was "
            "made of and train adapters (policy.lora)"
        )
    of_model = sum(p.numel() for name, p in policy.model.named_parameters() if "lora_" not in name)
    adapted = has_adapters(policy.model)
    dtype = in_dtype(of_model, wanted, policy.device)
    for parameter in policy.model.parameters():
        held = dtype if adapted and not parameter.requires_grad else torch.float32
        parameter.data = parameter.data.to(held)  # one at a time: never twice the model
    return replace(policy, dtype=dtype)
