"""What is a process that learns with others? It joins the run, and does what it is asked until the run goes.

    torchrun --nproc-per-node 2 -m whetstone.scaling.learners.rank

Easy to get wrong: ranks that wait for one that ran out of memory would wait for ever, and what gathers weights cannot
be taken up in the middle. So whoever runs out says so, hands over its share of the optimiser's state, and begins anew;
that closes its connections, which the others notice, and they do the same.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from whetstone.learning.forward_passes import GradientRequest, ReadRequest, is_out_of_memory
from whetstone.learning.tally import Tally
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.learners.messages import ADDRESS, KEY, Answer, Question, command_of, on_device, receive, send
from whetstone.scaling.learners.rank_mesh import RankMesh
from whetstone.scaling.learners.shard_passes import Divisible, Frozen, Pass, ShardPasses

_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others in the middle of a pass."""
_JOIN_SECONDS = 300.0
_GONE = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
"""What an error says where another rank went away."""


class Rank:
    """One of the processes, and what it can be asked; every method of a public name is a question."""

    def __init__(self) -> None:
        self.passes: ShardPasses | None = None
        self.device = torch.device("cpu")
        self._meshes: dict[int, RankMesh] = {}
        """By how many ranks compute a pass together; stages share one."""

    @property
    def _there(self) -> ShardPasses:
        assert self.passes is not None, "begin comes first"
        return self.passes

    def rendezvous(self) -> tuple[str, int]:
        """Where all ranks can meet this one."""
        with socket.socket() as free:
            free.bind(("", 0))
            return os.environ.get("MASTER_ADDR", "127.0.0.1"), free.getsockname()[1]

    def begin(
        self,
        *,
        meet: tuple[str, int],
        device: str,
        threads: int | None,
        together: int,
        policy: Policy,
        settings: OptimizerSettings,
        frozen: Mapping[str, Frozen],
        own_state: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Meet the others, and take a share of a policy.

        Args:
            together: How many ranks compute a pass together.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.passes = None  # of another stage
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if not dist.is_initialized():
            self._meet(meet, device, rank, count)
        if together not in self._meshes:
            self._meshes[together] = RankMesh(device, count, together)
        self.passes = ShardPasses(
            policy,
            settings,
            mesh=self._meshes[together],
            device=self.device,
            frozen=frozen,
        )
        if own_state is not None:
            self.passes.put_own_state(own_state)

    def _meet(self, meet: tuple[str, int], device: str, rank: int, count: int) -> None:
        local = int(os.environ.get("LOCAL_RANK", rank))
        self.device = torch.device("cpu") if device == "cpu" else torch.device(device, local)
        if device == "cuda":
            torch.cuda.set_device(self.device)
        store = dist.TCPStore(meet[0], meet[1], count, is_master=rank == 0, timeout=_TIMEOUT)  # type: ignore[attr-defined]
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_TIMEOUT)

    def gradient(
        self,
        *,
        request: GradientRequest,
        passes: Sequence[Pass],
        token_budget: int,
        critic_buffers: Mapping[str, Tensor],
    ) -> tuple[Tally, Any, float]:
        """Return (sums over this rank's passes of an update, findings of its part of the loss, seconds)."""
        began = time.perf_counter()
        shard = self._there
        shard.token_budget = token_budget
        shard.put_critic_buffers(critic_buffers)
        loss_of: Any = request.loss_of
        loss_of = loss_of if self.device.type == "cpu" else on_device(loss_of, self.device)
        tally = shard.gradient(replace(request, loss_of=loss_of), passes)
        return tally, loss_of.found() if isinstance(loss_of, Divisible) else None, time.perf_counter() - began

    def read(
        self, *, request: ReadRequest, passes: Sequence[Pass], critic_buffers: Mapping[str, Tensor]
    ) -> dict[str, list[Tensor]]:
        """See `ShardPasses.read`."""
        self._there.put_critic_buffers(critic_buffers)
        return self._there.read(request, passes)

    def apply(self, **given: Any) -> Any:
        """See `ShardPasses.apply`."""
        return self._there.apply(**given)

    def gradients(self) -> list[Tensor]:
        """See `ShardPasses.gradients`."""
        return self._there.gradients()

    def norm(self) -> float:
        """See `ShardPasses.norm`."""
        return self._there.norm()

    def drop(self) -> None:
        """See `ShardPasses.drop`."""
        self._there.drop()

    def put_weights(self, *, weights: Sequence[Tensor]) -> None:
        """See `ShardPasses.put_weights`."""
        self._there.put_weights(weights)

    def put_reference(self, *, weights: Sequence[Tensor]) -> None:
        """See `ShardPasses.put_reference`."""
        self._there.put_reference(weights)

    def save(self, *, folder: str) -> Any:
        """See `ShardPasses.save`."""
        return self._there.save(folder)

    def load(self, *, state: Mapping[str, Any]) -> None:
        """See `ShardPasses.load`."""
        self._there.load(state)

    def restart(self) -> Any:
        """This rank's share of the optimiser's state; it begins anew behind it."""
        return self._there.own_state()

    def answered(self, question: Question) -> Answer:
        """What comes of a question."""
        try:
            return Answer("done", getattr(self, question.name)(**question.given))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
            if is_out_of_memory(error):
                return Answer("memory", self._kept(), said)
            if any(word in str(error) for word in _GONE):
                return Answer("lost", self._kept(), said)
            return Answer("raised", _portable(error), traceback.format_exc())
        except Exception as error:  # it is the run's to say, in whose place this one computes
            return Answer("raised", _portable(error), traceback.format_exc())

    def _kept(self) -> Any:
        return None if self.passes is None else self.passes.own_state()


def _portable(error: Exception) -> Exception | None:
    """The error where another process can have it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an error of somebody else's holds
        return None
    return error


def serve(connection: Connection) -> bool:
    """Do what is asked, until nobody is there. Returns whether to begin anew."""
    rank = Rank()
    while True:
        try:
            question = receive(connection)
        except (EOFError, OSError):
            return False
        except Exception as error:  # it holds something of a module that is not here
            said = "functions of a recipe are defined at the top of a module that others can import"
            send(connection, Answer("raised", None, f"{type(error).__name__}: {error}; {said}"))
            continue
        answer = rank.answered(question)
        send(connection, answer)
        if answer.kind in ("memory", "lost") or question.name == "restart":
            return True


def _joined() -> Connection:
    """A connection to the run, which may be a while in coming."""
    host, _, port = os.environ[ADDRESS].rpartition(":")
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            return Client((host, int(port)), authkey=bytes.fromhex(os.environ[KEY]))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _close_with_exec() -> None:
    """Have every connection end when this process begins anew, as the others are to notice; not all end by themselves.

    Closed before that they would be missed: threads of gloo that wait on them end the process.
    """
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2:
            with contextlib.suppress(OSError):  # the folder's own
                os.set_inheritable(number, False)


def main() -> None:
    """Join the run whose address the environment has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run hears it, and ends this one
    connection = _joined()
    send(connection, int(os.environ["RANK"]))
    sys.path[:] = receive(connection)
    if serve(connection):
        _close_with_exec()
        os.execv(sys.executable, command_of(sys.path))


if __name__ == "__main__":
    main()
