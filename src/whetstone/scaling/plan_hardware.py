"""Data of GPUs and models for plans, from data sheets and published configurations.

Note:
    The largest number of operations in a data sheet assumes sparsity. These are dense operations in bfloat16.

Source: the makers' data sheets (A100, H100, H200, B200, L40S, RTX 4090, MI300X); for the shapes the Qwen3 technical
report, arXiv:2505.09388, table 1, and Llama 3, arXiv:2407.21783, table 3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from whetstone.assembly.model_size import ModelSize
from whetstone.errors import RecipeError, did_you_mean


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet values of a GPU type."""

    name: str
    memory_gib: float
    """Memory in GiB."""
    teraflops: float
    """Peak dense bfloat16 operations in TFLOPS."""
    memory_bandwidth: float
    """Memory bandwidth in GB per second."""
    link: float
    """Bandwidth to other GPUs of the node in GB per second, one way."""
    network: float
    """Bandwidth to other nodes in GB per second, one way; one adapter per GPU in servers, one for all in
    workstations."""


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40", 40, 312, 1555, 300, 25),
        Gpu("a100", 80, 312, 2039, 300, 25),
        Gpu("h100", 80, 989, 3350, 450, 50),
        Gpu("h200", 141, 989, 4800, 450, 50),
        Gpu("b200", 180, 2250, 8000, 900, 50),
        Gpu("mi300x", 192, 1307, 5300, 448, 50),
        Gpu("l40s", 48, 362, 864, 32, 12.5),
        Gpu("rtx-4090", 24, 165, 1008, 32, 3),
    )
}
MODELS: Mapping[str, ModelSize] = {
    "0.6b": ModelSize(600_000_000, 28, 1024, 3072, 1024, 151_936, 40_960),
    "1.7b": ModelSize(1_700_000_000, 28, 2048, 6144, 1024, 151_936, 40_960),
    "4b": ModelSize(4_000_000_000, 36, 2560, 9728, 1024, 151_936, 40_960),
    "8b": ModelSize(8_190_000_000, 36, 4096, 12_288, 1024, 151_936, 40_960),
    "14b": ModelSize(14_800_000_000, 40, 5120, 17_408, 1024, 151_936, 40_960),
    "32b": ModelSize(32_800_000_000, 64, 5120, 25_600, 1024, 151_936, 40_960),
    "70b": ModelSize(70_600_000_000, 80, 8192, 28_672, 1024, 128_256, 131_072),
    "405b": ModelSize(405_000_000_000, 126, 16_384, 53_248, 1024, 128_256, 131_072),
}
"""Dense models by size name; other sizes have the shape of the next smaller one."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU type with this name, such as `h100`; upper and lower case are equal.

    Raises:
        RecipeError: The name is unknown; the message lists the known ones.
    """
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise RecipeError(f'no GPU "{name}" among {", ".join(GPUS)}{did_you_mean(name.lower(), GPUS)}')
    return gpu


def named_model(name: str) -> ModelSize | None:
    """Return the shape of a dense model of a size such as `8b`; None if the name is not a size.

    A size without published shape has the shape of the next smaller one.
    """
    low = name.lower()
    if low in MODELS:
        return MODELS[low]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)b", low)
    if match is None or float(match[1]) <= 0:
        return None
    count = round(float(match[1]) * 1e9)
    near = max(
        (m for m in MODELS.values() if m.parameters <= count), key=lambda m: m.parameters, default=MODELS["0.6b"]
    )
    return replace(near, parameters=count)
