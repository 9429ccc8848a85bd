"""Rank process of a distributed learner: joins the run and executes requests until the run ends.

    torchrun --nproc-per-node 2 -m whetstone.scaling.distributed_learner.rank

Note:
    Ranks that wait for one that ran out of memory would wait forever, and a gather of weights cannot be resumed. A rank
    that runs out of memory therefore reports it with its shard of the optimizer state, and restarts. That closes its
    connections; the other ranks notice and do the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
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
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.distributed_learner.messages import (
    ADDRESS,
    KEY,
    RankRequest,
    RankResponse,
    on_device,
    rank_command,
    receive_message,
    send_message,
)
from whetstone.scaling.distributed_learner.rank_mesh import RankMesh
from whetstone.scaling.distributed_learner.shard_passes import Frozen, Pass, ShardedLoss, ShardPasses

_TIMEOUT = timedelta(minutes=30)
"""Maximum time that a rank waits for the others during a pass."""
_JOIN_SECONDS = 300.0
_CONNECTION_ERRORS = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
"""Words in errors that mean that another rank disappeared."""


class Rank:
    """One rank of a distributed learner; the run calls each public method by a request."""

    def __init__(self) -> None:
        self.passes: ShardPasses | None = None
        self.device = torch.device("cpu")
        self._meshes: dict[int, RankMesh] = {}
        """Meshes by the number of ranks that compute a pass together; stages share them."""

    @property
    def _initialized_passes(self) -> ShardPasses:
        assert self.passes is not None, "the rank was not initialized"
        return self.passes

    def get_rendezvous_address(self) -> tuple[str, int]:
        """Return (host, free port) at which all ranks can connect to this one."""
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
        """Connect to the other ranks, and load this rank's shard of a policy.

        Args:
            meet: Rendezvous address of all ranks.
            device: Device type, `cpu` or `cuda`.
            threads: Number of PyTorch threads; None: unchanged.
            together: Number of ranks that compute a pass together.
            policy: Full policy on the CPU.
            settings: Settings of the optimizer.
            frozen: Frozen models by name, `reference` and `teacher`.
            own_state: This rank's shard of the optimizer state from before a restart; None: a new state.
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
    ) -> tuple[MetricAccumulator, Any, float]:
        """Compute this rank's passes of an update.

        Returns:
            (sums over the passes, statistics of this rank's part of the loss, seconds).
        """
        began = time.perf_counter()
        shard = self._initialized_passes
        shard.token_budget = token_budget
        shard.put_critic_buffers(critic_buffers)
        loss_of: Any = request.loss_of
        loss_of = loss_of if self.device.type == "cpu" else on_device(loss_of, self.device)
        tally = shard.gradient(replace(request, loss_of=loss_of), passes)
        return (
            tally,
            loss_of.collect_statistics() if isinstance(loss_of, ShardedLoss) else None,
            time.perf_counter() - began,
        )

    def read(
        self, *, request: ReadRequest, passes: Sequence[Pass], critic_buffers: Mapping[str, Tensor]
    ) -> dict[str, list[Tensor]]:
        """Compute columns such as log-probs without a gradient; see `ShardPasses.read`."""
        self._initialized_passes.put_critic_buffers(critic_buffers)
        return self._initialized_passes.read(request, passes)

    def apply(self, **options: Any) -> Any:
        """Make an optimizer step; see `ShardPasses.apply`."""
        return self._initialized_passes.apply(**options)

    def gradients(self) -> list[Tensor]:
        """Return the full gradient; see `ShardPasses.gradients`."""
        return self._initialized_passes.gradients()

    def norm(self) -> float:
        """Return the norm of the gradient over all ranks."""
        return self._initialized_passes.norm()

    def drop(self) -> None:
        """Discard the accumulated gradient of this rank."""
        self._initialized_passes.drop()

    def put_weights(self, *, weights: Sequence[Tensor]) -> None:
        """Replace the trained weights by full tensors."""
        self._initialized_passes.put_weights(weights)

    def put_reference(self, *, weights: Sequence[Tensor]) -> None:
        """Replace the weights of the reference model by full tensors."""
        self._initialized_passes.put_reference(weights)

    def save(self, *, folder: str) -> Any:
        """Write this rank's shard of the optimizer state to a folder; see `ShardPasses.save`."""
        return self._initialized_passes.save(folder)

    def load(self, *, state: Mapping[str, Any]) -> None:
        """Restore an optimizer state that any number of processes saved."""
        self._initialized_passes.load(state)

    def restart(self) -> Any:
        """Return this rank's shard of the optimizer state; the process restarts after the response."""
        return self._initialized_passes.own_state()

    def execute(self, request: RankRequest) -> RankResponse:
        """Execute a request of the run; errors become part of the response."""
        try:
            return RankResponse("done", getattr(self, request.name)(**request.arguments))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            text = f"{type(error).__name__}: {error}"
            if is_out_of_memory(error):
                return RankResponse("memory", self._save_own_state(), text)
            if any(word in str(error) for word in _CONNECTION_ERRORS):
                return RankResponse("lost", self._save_own_state(), text)
            return RankResponse("raised", _portable(error), traceback.format_exc())
        except Exception as error:  # the run raises it, as if it had computed here
            return RankResponse("raised", _portable(error), traceback.format_exc())

    def _save_own_state(self) -> Any:
        return None if self.passes is None else self.passes.own_state()


def _portable(error: Exception) -> Exception | None:
    """Return the error if another process can unpickle it, else None."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a third-party error can contain anything
        return None
    return error


def serve_requests(connection: Connection) -> bool:
    """Execute requests until the connection closes.

    Returns:
        True if the process has to restart, False if the run has ended.
    """
    rank = Rank()
    while True:
        try:
            request = receive_message(connection)
        except (EOFError, OSError):
            return False
        except Exception as error:  # it contains an object of a module that is missing here
            remedy = "define functions of a recipe at the top level of a module that other processes can import"
            send_message(connection, RankResponse("raised", None, f"{type(error).__name__}: {error}; {remedy}"))
            continue
        response = rank.execute(request)
        send_message(connection, response)
        if response.kind in ("memory", "lost") or request.name == "restart":
            return True


def _connect_to_run() -> Connection:
    """Connect to the run at the address in the environment, with retries for up to five minutes."""
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
    """Mark all file descriptors to be closed when this process restarts, so that other ranks notice.

    Not all close by themselves. If they were closed earlier, the threads of gloo that wait on them would end the
    process.
    """
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2:
            with contextlib.suppress(OSError):  # the folder's own
                os.set_inheritable(number, False)


def run_rank() -> None:
    """Run a rank process: join the run at the address in the environment and serve its requests."""
    faulthandler.enable()  # the run reports the place of a fatal signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run receives it, and ends this process
    connection = _connect_to_run()
    send_message(connection, int(os.environ["RANK"]))
    sys.path[:] = receive_message(connection)
    if serve_requests(connection):
        _close_with_exec()
        os.execv(sys.executable, rank_command(sys.path))


if __name__ == "__main__":
    run_rank()
