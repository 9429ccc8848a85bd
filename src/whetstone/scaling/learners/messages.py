"""How do the run and its ranks talk? One question, one answer, over a socket that both know the key of.

Easy to get wrong: PyTorch teaches the pickling of Python's own connections to pass tensors as shared memory, which
another machine cannot open. Here a message is pickled by itself, with the numbers in it.
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
"""Environment variables of a rank: `host:port` where the run listens, and the secret both know."""
_RANK = "whetstone.scaling.learners.rank"
AnswerKind = Literal["done", "memory", "lost", "raised"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a rank is to do."""

    name: str
    """A method of `Rank`."""
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it."""

    kind: AnswerKind
    """`memory`: it did not suffice. `lost`: another rank went away in the middle. `raised`: an error."""
    value: Any = None
    """Of `memory` and `lost`, this rank's share of the optimiser's state."""
    text: str = ""
    """Of an error, in words."""


def command_of(path: Sequence[str]) -> list[str]:
    """What starts a rank that looks for modules where `path` says."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {list(path)!r}; from {_RANK} import main; main()"]


def pack(message: object) -> bytes:
    """A message as it is sent.

    Raises:
        pickle.PicklingError, AttributeError, TypeError: It holds something that another process could not have.
    """
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def send(connection: Connection, message: object) -> None:
    """Send a message.

    Raises:
        OSError: Nobody is there.
        pickle.PicklingError, AttributeError, TypeError: As of `pack`.
    """
    connection.send_bytes(pack(message))


def receive(connection: Connection) -> Any:
    """The next message.

    Raises:
        EOFError, OSError: Nobody is there any more.
    """
    return pickle.loads(connection.recv_bytes())


def on_device(value: Any, device: torch.device) -> Any:
    """The same value with its tensors on a device; those inside of sequences, mappings and dataclasses."""
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
