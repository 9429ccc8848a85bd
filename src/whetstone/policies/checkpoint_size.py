"""Size of the model in a folder, from the headers of its files, without reading weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Size of the weights in a model folder, from `stored_weights`."""

    parameters: int
    """Number of parameters."""
    matrices: int
    """Number of parameters in tensors with two dimensions."""
    bytes: int
    """Size on disk in bytes."""


def stored_weights(folder: Path) -> StoredWeights | None:
    """Return the size of the weights in a Hugging Face folder, from the headers of its safetensors files.

    Returns:
        The size; None if the folder has no such files, or a header cannot be read.
    """
    parameters = matrices = 0
    files = sorted(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    shape = tensors.get_slice(name).get_shape()
                    parameters += math.prod(shape)
                    matrices += math.prod(shape) if len(shape) == 2 else 0
    except (SafetensorError, OSError):  # the error appears when the model is loaded
        return None
    return StoredWeights(parameters, matrices, sum(file.stat().st_size for file in files)) if files else None
