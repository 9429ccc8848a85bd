"""Weight broadcast: weights are put into shared memory once, and every replica reads them there.

    weights → changes since the previous version → one buffer → an update of references → replicas check and load

Only changes are sent: the adapters of a policy with LoRA. A replica that restarted receives all changes since it was
created, from the buffers that still hold them.

Note:
    A buffer is released when no name refers to it. Names are moved to the new buffer before the old one is released;
    otherwise a replica that restarts in between would find nothing.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whetstone.errors import EngineError
from whetstone.inference.protocol import Weights
from whetstone.scaling.protocol import WeightUpdate

SharedBuffer = Mapping[str, tuple[np.ndarray, str]]
"""Buffer of weights in shared memory: name → (array, PyTorch dtype)."""
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SharedWeights:
    """Record of the weights in shared memory; builds the updates that replicas load.

    Args:
        put: Function that puts a buffer into shared memory and returns a reference.
        initial_weights: Weights with which replicas start.
        version: Version of the initial weights.
    """

    def __init__(self, put: Callable[[SharedBuffer], Any], initial_weights: Weights, *, version: int) -> None:
        self._put = put
        self._at: dict[str, tuple[Any, int]] = {
            name: (None, compute_checksum(as_array(tensor))) for name, tensor in initial_weights.items()
        }
        """Name → (reference of its buffer, checksum); no reference: the initial weight of replicas."""
        self._frozen = {name for name, tensor in initial_weights.items() if not tensor.requires_grad}
        """Frozen weights. Weights that were gathered from several processes do not have `requires_grad`."""
        self.version = version
        self.bytes = 0
        """Size of the last update, in bytes."""

    def collect_changes(self, weights: Weights, version: int) -> WeightUpdate:
        """Put the weights that changed since the previous version into shared memory, and return the update.

        Reads all trained weights; call it in a thread.
        """
        buffer: dict[str, tuple[np.ndarray, str]] = {}
        sums: dict[str, tuple[int, int]] = {}
        for name, tensor in weights.items():
            if name in self._frozen:
                continue
            array = as_array(tensor)
            checksum = compute_checksum(array)
            if name not in self._at or self._at[name][1] != checksum:
                buffer[name] = (array, str(tensor.dtype).removeprefix("torch."))
                sums[name] = (0, checksum)
        self.bytes = sum(array.nbytes for array, _ in buffer.values())
        since, self.version = self.version, version
        if not buffer:
            return WeightUpdate(version, since, (), {})
        reference = self._put(buffer)
        self._at.update({name: (reference, checksum) for name, (_, checksum) in sums.items()})
        return WeightUpdate(version, since, (reference,), sums)

    def collect_all(self) -> WeightUpdate:
        """Return an update with all changes since the initial weights, for a replica that restarted."""
        buffers: list[Any] = []
        names: dict[str, tuple[int, int]] = {}
        for name, (reference, checksum) in self._at.items():
            if reference is None:
                continue
            place = next((place for place, buffer in enumerate(buffers) if buffer is reference), None)
            if place is None:
                place = len(buffers)
                buffers.append(reference)
            names[name] = (place, checksum)
        return WeightUpdate(self.version, None, tuple(buffers), names)


def unpack_weights(update: WeightUpdate, buffers: list[SharedBuffer]) -> dict[str, Tensor]:
    """Return the weights of an update, after a check of their checksums.

    The tensors share memory with the buffers and are read-only.

    Raises:
        EngineError: A checksum differs.
    """
    weights: dict[str, Tensor] = {}
    for name, (place, checksum) in update.names.items():
        array, dtype = buffers[place][name]
        if compute_checksum(array) != checksum:
            raise EngineError(
                f"weights of version {update.version}: {name} has checksum {compute_checksum(array):08x}, expected "
                f"{checksum:08x}"
            )
        weights[name] = as_tensor(array, dtype)
    return weights


def as_array(tensor: Tensor) -> np.ndarray:
    """Return the bits of a tensor as an integer array; NumPy lacks some dtypes of PyTorch.

    The array shares memory if the tensor is contiguous and on the CPU.
    """
    plain = tensor.detach().cpu().contiguous()
    array: np.ndarray = plain.view(_AS_INTEGERS[plain.element_size()]).numpy()
    return array


def as_tensor(array: np.ndarray, dtype: str) -> Tensor:
    """Return a tensor of this dtype with the bits of an array; it shares the array's memory, which may be read-only."""
    kind: torch.dtype = getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about read-only memory; it is never written
        return torch.from_numpy(array).view(kind)


def compute_checksum(array: np.ndarray) -> int:
    """Return the CRC-32 checksum of the bytes of an array."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)
