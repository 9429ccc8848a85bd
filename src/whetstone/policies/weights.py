"""How large is the model in a folder? Read from the heads of its files, without one of its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """What lies in a model folder."""

    parameters: int
    """Numbers in its matrices and vectors."""
    matrices: int
    """Of them, those that stand in matrices."""
    bytes: int
    """As they are stored."""


def stored_weights(folder: Path) -> StoredWeights | None:
    """The size of a Hugging Face folder's weights, of all its files; None where they cannot be counted unread."""
    parameters = matrices = 0
    files = sorted(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    shape = tensors.get_slice(name).get_shape()
                    parameters += math.prod(shape)
                    matrices += math.prod(shape) if len(shape) == 2 else 0
    except (SafetensorError, OSError):  # whoever loads it says what is wrong
        return None
    return StoredWeights(parameters, matrices, sum(file.stat().st_size for file in files)) if files else None
