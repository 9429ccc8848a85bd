"""Selection of the precision in which a policy is computed: float32, bfloat16 or float16."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from typing import Literal

import torch

from whetstone.errors import PolicyError
from whetstone.policies.devices import describe_device, device_module_function

Precision = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 20_000_000
"""Number of parameters below which half precision saves no time."""
_FAST_RATIO = 0.8
"""Largest `bfloat16_time_ratio` at which bfloat16 is used. Measured: 0.3 to 0.6 with bfloat16 instructions, 4 to 27
without."""
_MEASURED = (384, 384)
_MEASURED_SECONDS = 0.1
_LEAST_RUNS, _MOST_RUNS = 4, 40


def suitable_dtype(parameters: int, device: torch.device) -> torch.dtype:
    """Return the precision that suits a model: float32 if it is small, else the faster one.

    On a GPU without bfloat16 instructions, large models are computed in float16.

    Args:
        parameters: Number of parameters; models below `SMALL` are small.
        device: Device of the model.
    """
    if parameters < SMALL:
        return torch.float32
    fast = fast_dtype(device)
    return torch.float16 if fast == torch.float32 and device.type == "cuda" else fast


def in_dtype(parameters: int, wanted: Precision, device: torch.device) -> torch.dtype:
    """Return the precision of a model on a device; `auto` selects `suitable_dtype`.

    Args:
        parameters: Number of parameters.
        wanted: Precision that the recipe sets.
        device: Device of the model.
    """
    return suitable_dtype(parameters, device) if wanted == "auto" else _DTYPES[wanted]


def check_dtype(wanted: Precision, device: torch.device) -> None:
    """Check that a device has instructions for a precision; a CPU emulates missing ones.

    Raises:
        PolicyError: If the device has no instructions for the precision.
    """
    if wanted == "bfloat16" and device.type != "cpu" and _has_bfloat16(device) is False:
        raise PolicyError(f"bfloat16: {describe_device(device)} has no instructions for it; use float16 or float32")


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return the faster precision for matrix products on a device: bfloat16 or float32.

    On a CPU the choice is measured. The instruction set is not enough to decide: without bfloat16 instructions PyTorch
    emulates them 4 to 17 times slower than float32, and a CPU that has them can be limited to others.
    """
    if device.type == "cpu":
        return torch.bfloat16 if bfloat16_time_ratio() <= _FAST_RATIO else torch.float32
    return torch.bfloat16 if _has_bfloat16(device) else torch.float32


@functools.cache
def bfloat16_time_ratio() -> float:
    """Return the time of a bfloat16 matrix product divided by that of float32, on one CPU thread.

    Measured once per process in about 0.2 s at most. The products alternate, and the shortest time of each counts, so
    that other work on the processor does not change the decision.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        factors = {dtype: torch.ones(_MEASURED, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
        shortest = dict.fromkeys(factors, math.inf)
        deadline = time.perf_counter() + _MEASURED_SECONDS
        for run in range(_MOST_RUNS):
            for dtype, factor in factors.items():
                started = time.perf_counter()
                torch.mm(factor, factor)
                shortest[dtype] = min(shortest[dtype], time.perf_counter() - started)
            if run + 1 >= _LEAST_RUNS and time.perf_counter() > deadline:
                break
    finally:
        torch.set_num_threads(threads)
    return shortest[torch.bfloat16] / shortest[torch.float32]


def describe_fast_dtype(device: torch.device) -> str:
    """Describe the faster precision of a device in one line, with the measured ratio on a CPU."""
    name = str(fast_dtype(device)).removeprefix("torch.")
    if device.type != "cpu":
        return f"{name} (reported by the driver)"
    return f"{name} (a bfloat16 matrix product takes {bfloat16_time_ratio():.2g} times as long as float32)"


def _has_bfloat16(device: torch.device) -> bool | None:
    """Return whether an accelerator has bfloat16 instructions.

    None if its PyTorch module does not report it.
    """
    ask, using = device_module_function(device, "is_bf16_supported"), device_module_function(device, "device")
    if ask is None:
        return None
    with using(device) if using is not None else contextlib.nullcontext():  # the function reads the current device
        return bool(ask(including_emulation=False))
