"""How is an optimiser's state kept that no process has all of? Each writes its share, and any number reads it again.

By `torch.distributed.checkpoint`, whose files know of every number where it stands in the whole. What is no tensor
(rates, decay) is the same everywhere, and kept beside.

Easy to get wrong: a learner of one process reads it too, with nobody to talk to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from whetstone.errors import RunDirectoryError


def write_shards(folder: Path, optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Write this process's share of what the optimisers remember; all processes call it.

    Returns:
        Of each optimiser, what is the same everywhere.
    """
    tensors: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    for number, optimizer in enumerate(optimizers):
        saved = optimizer.state_dict()
        for place, remembered in saved["state"].items():
            for name, value in remembered.items():
                tensors[f"{number}.{place}.{name}"] = torch.as_tensor(value)
        groups.append({"state": {}, "param_groups": saved["param_groups"]})
    save(tensors, storage_writer=FileSystemWriter(folder), no_dist=not dist.is_initialized())
    return groups


def read_shards(
    folder: Path, optimizers: Sequence[Optimizer], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """States for these optimisers, of this process's share of the parameters; all processes call it.

    Args:
        groups: As `write_shards` returned them.

    Raises:
        RunDirectoryError: A file is missing or damaged, or they are of other parameters.
    """
    try:
        reader = FileSystemReader(folder)
        found = _empty(reader.read_metadata().state_dict_metadata, optimizers)
        load(found, storage_reader=reader, no_dist=not dist.is_initialized())
    except (OSError, LookupError, ValueError, CheckpointException) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunDirectoryError(f"{folder}: the optimiser's state cannot be read: {said[:300]}") from error
    states: list[dict[str, Any]] = [{**group, "state": {}} for group in groups]
    for key, value in found.items():
        number, place, name = key.split(".", 2)
        states[int(number)]["state"].setdefault(int(place), {})[name] = value
    return states


def _empty(written: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Tensors to read into, divided as the parameters they belong to."""
    parameters = [[p for group in each.param_groups for p in group["params"]] for each in optimizers]
    found: dict[str, Tensor] = {}
    for key, stored in written.items():
        assert isinstance(stored, TensorStorageMetadata)
        number, place, _ = key.split(".", 2)
        parameter, dtype = parameters[int(number)][int(place)], stored.properties.dtype
        alike = stored.size == parameter.shape
        found[key] = torch.zeros_like(parameter, dtype=dtype) if alike else torch.zeros(stored.size, dtype=dtype)
    return found
