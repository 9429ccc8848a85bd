"""Sharded optimizer state in checkpoints: each process writes its shard, any number of processes load it.

Uses `torch.distributed.checkpoint`, whose files store the position of every number in the full tensor. Values that are
not tensors (rates, decay) are the same in all processes and are stored separately.

Note:
    A learner with one process loads this state too, without a process group.
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
    """Write this process's shard of the optimizer states; all processes call the function.

    Args:
        folder: Folder of the shards.
        optimizers: Optimizers, in the same order in all processes.

    Returns:
        Per optimizer, the values that are the same in all processes.
    """
    tensors: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    for number, optimizer in enumerate(optimizers):
        saved = optimizer.state_dict()
        for place, entries in saved["state"].items():
            for name, value in entries.items():
                tensors[f"{number}.{place}.{name}"] = torch.as_tensor(value)
        groups.append({"state": {}, "param_groups": saved["param_groups"]})
    save(tensors, storage_writer=FileSystemWriter(folder), no_dist=not dist.is_initialized())
    return groups


def read_shards(
    folder: Path, optimizers: Sequence[Optimizer], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Load this process's shard of the optimizer states; all processes call the function.

    The number of processes may differ from the one that wrote the shards.

    Args:
        folder: Folder of the shards.
        optimizers: Optimizers whose parameters have their present shards.
        groups: Return value of `write_shards`.

    Returns:
        State of each optimizer.

    Raises:
        RunDirectoryError: If a file is missing or damaged, or belongs to other parameters.
    """
    try:
        reader = FileSystemReader(folder)
        tensors = _empty(reader.read_metadata().state_dict_metadata, optimizers)
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    except (OSError, LookupError, ValueError, CheckpointException) as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunDirectoryError(
            f"{folder}: the optimizer state cannot be read ({detail[:300]}); resume from an earlier checkpoint"
        ) from error
    states: list[dict[str, Any]] = [{**group, "state": {}} for group in groups]
    for key, value in tensors.items():
        number, place, name = key.split(".", 2)
        states[int(number)]["state"].setdefault(int(place), {})[name] = value
    return states


def _empty(written: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return tensors to load into, sharded like the parameters that they belong to."""
    parameters = [[p for group in each.param_groups for p in group["params"]] for each in optimizers]
    tensors: dict[str, Tensor] = {}
    for key, stored in written.items():
        assert isinstance(stored, TensorStorageMetadata)
        number, place, _ = key.split(".", 2)
        parameter, dtype = parameters[int(number)][int(place)], stored.properties.dtype
        has_same_shape = stored.size == parameter.shape
        tensors[key] = (
            torch.zeros_like(parameter, dtype=dtype) if has_same_shape else torch.zeros(stored.size, dtype=dtype)
        )
    return tensors
