"""How do weights travel to where they are drawn from? Once into shared memory, from where every replica reads them.

    weights → what changed since the version before → one shelf → a parcel of references → replicas check and load

Only what changed travels: of a policy with adapters, the adapters. A replica that began again is sent all of it, from
the shelves on which the parts lie still.

Easy to get wrong: a shelf is given back when nothing names it any more. Names are moved to the new shelf before the old
one is let go, or a replica that begins again between the two would find nothing.
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
from whetstone.scaling.protocol import Parcel

Shelf = Mapping[str, tuple[np.ndarray, str]]
"""Name → (numbers, their type in PyTorch's words)."""
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Published:
    """What was sent to replicas, and where it lies.

    Args:
        put: Puts a shelf where all can read it; a reference to it.
        begin: The weights replicas are made with.
        version: Of those.
    """

    def __init__(self, put: Callable[[Shelf], Any], begin: Weights, *, version: int) -> None:
        self._put = put
        self._at: dict[str, tuple[Any, int]] = {
            name: (None, checksum_of(as_array(tensor))) for name, tensor in begin.items()
        }
        """Name → (the reference of its shelf, its checksum); no reference: it is as replicas are made."""
        self._frozen = {name for name, tensor in begin.items() if not tensor.requires_grad}
        """What nobody changes. Weights that were gathered from several processes do not say so themselves."""
        self.version = version
        self.bytes = 0
        """Of the last parcel that was made."""

    def changed(self, weights: Weights, version: int) -> Parcel:
        """A parcel of what differs from the version before. Reads all that is trained: to be called in a thread."""
        shelf: dict[str, tuple[np.ndarray, str]] = {}
        sums: dict[str, tuple[int, int]] = {}
        for name, tensor in weights.items():
            if name in self._frozen:
                continue
            array = as_array(tensor)
            checksum = checksum_of(array)
            if name not in self._at or self._at[name][1] != checksum:
                shelf[name] = (array, str(tensor.dtype).removeprefix("torch."))
                sums[name] = (0, checksum)
        self.bytes = sum(array.nbytes for array, _ in shelf.values())
        since, self.version = self.version, version
        if not shelf:
            return Parcel(version, since, (), {})
        reference = self._put(shelf)
        self._at.update({name: (reference, checksum) for name, (_, checksum) in sums.items()})
        return Parcel(version, since, (reference,), sums)

    def whole(self) -> Parcel:
        """A parcel of everything that is not as replicas are made: for one that began again."""
        shelves: list[Any] = []
        names: dict[str, tuple[int, int]] = {}
        for name, (reference, checksum) in self._at.items():
            if reference is None:
                continue
            place = next((place for place, shelf in enumerate(shelves) if shelf is reference), None)
            if place is None:
                place = len(shelves)
                shelves.append(reference)
            names[name] = (place, checksum)
        return Parcel(self.version, None, tuple(shelves), names)


def unpacked(parcel: Parcel, shelves: list[Shelf]) -> dict[str, Tensor]:
    """The weights of a parcel, each compared with its checksum. They share memory with the shelves and are read only.

    Raises:
        EngineError: One is not what was sent.
    """
    found: dict[str, Tensor] = {}
    for name, (place, checksum) in parcel.names.items():
        array, dtype = shelves[place][name]
        if checksum_of(array) != checksum:
            raise EngineError(
                f"weights of version {parcel.version}: {name} has checksum {checksum_of(array):08x}, and was sent with "
                f"{checksum:08x}"
            )
        found[name] = as_tensor(array, dtype)
    return found


def as_array(tensor: Tensor) -> np.ndarray:
    """The same bits as integers; NumPy does not know every type of ours. Shares memory where the tensor is on the CPU
    and in one piece."""
    plain = tensor.detach().cpu().contiguous()
    array: np.ndarray = plain.view(_AS_INTEGERS[plain.element_size()]).numpy()
    return array


def as_tensor(array: np.ndarray, dtype: str) -> Tensor:
    """The tensor whose bits these are; it shares their memory, which may be read only."""
    kind: torch.dtype = getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is read only; nobody writes to it
        return torch.from_numpy(array).view(kind)


def checksum_of(array: np.ndarray) -> int:
    """CRC-32 of the bytes."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)
