"""Messages between a run and its rank processes: one request, one response, over an authenticated socket.

Note:
    PyTorch makes Python's own connections pickle tensors as shared memory, which another machine cannot open. Messages
    are therefore pickled separately, with the numbers in them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch

ADDRESS, KEY = "WHETSTONE_LEARNER_ADDRESS", "WHETSTONE_LEARNER_KEY"
"""Environment variables of a rank: `host:port` of the run, and the secret of both."""
_RANK = "whetstone.scaling.distributed_learner.rank"
ResponseKind = Literal["done", "memory", "lost", "raised"]


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Request of the run to a rank: a method call."""

    name: str
    """Name of a method of `Rank`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the method."""


@dataclass(frozen=True, slots=True)
class RankResponse:
    """Response of a rank to a request."""

    kind: ResponseKind
    """`done`: success. `memory`: memory did not suffice. `lost`: another rank disappeared during the call. `raised`: an
    error."""
    value: Any = None
    """Return value for `done`; this rank's shard of the optimizer state for `memory` and `lost`; the error for
    `raised`."""
    text: str = ""
    """Text of the error; empty for `done`."""


def rank_command(path: Sequence[str]) -> list[str]:
    """Return the command line that starts a rank process with `path` as its module search path."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {list(path)!r}; from {_RANK} import run_rank; run_rank()"]


def pickle_message(message: object) -> bytes:
    """Pickle a message with its tensors.

    Raises:
        pickle.PicklingError, AttributeError, TypeError: The message contains an object that another process cannot
            load.
    """
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def send_message(connection: Connection, message: object) -> None:
    """Pickle a message and send it to the other process.

    Raises:
        OSError: The other process is gone.
        pickle.PicklingError, AttributeError, TypeError: See `pickle_message`.
    """
    connection.send_bytes(pickle_message(message))


def receive_message(connection: Connection) -> Any:
    """Receive and unpickle the next message.

    Raises:
        EOFError, OSError: The other process is gone.
    """
    return pickle.loads(connection.recv_bytes())


def on_device(value: Any, device: torch.device) -> Any:
    """Return a copy of a value with all its tensors, detached, on a device.

    Tensors in sequences, mappings and dataclasses are included.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, dict):
        return {key: on_device(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [on_device(each, device) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        changed = {each.name: on_device(getattr(value, each.name), device) for each in fields(value)}
        return replace(value, **changed)
    return value
