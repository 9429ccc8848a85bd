"""Processes of a distributed learner: started by the run or externally, called together, ended together.

Note:
    A rank that died never responds, and neither does a rank that waits for it. A closed socket is noticed, and ends all
    ranks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, wait
from pickle import PicklingError
from typing import IO, Any

import torch

from whetstone.errors import LearnerError
from whetstone.scaling.distributed_learner.messages import (
    ADDRESS,
    KEY,
    RankRequest,
    RankResponse,
    pickle_message,
    rank_command,
    receive_message,
    send_message,
)

_START_SECONDS = 300.0
"""Maximum seconds until all ranks join; PyTorch loads slowly if many processes load it from one disk."""
_END_SECONDS = 5.0
_KEY_BYTES = 16
_BETWEEN_LOOKS = 0.5


class LearnerProcesses:
    """Rank processes of a distributed learner, with a connection to each.

    Args:
        count: Number of ranks.
        address: `host:port` at which externally started ranks (torchrun) join, with the key in the environment; None:
            this process starts the ranks.

    Raises:
        LearnerError: A rank ended, or not all ranks joined in time.
    """

    def __init__(self, count: int, *, address: str | None = None) -> None:
        self.count = count
        self.joined = address is not None
        """Whether the ranks were started externally."""
        host, _, port = (address or "127.0.0.1:0").rpartition(":")
        self._key = read_rank_key() if self.joined else secrets.token_bytes(32)
        self._listener = Listener((host, int(port)), backlog=count, authkey=self._key)
        self._stderr: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self.closed = False
        try:
            if not self.joined:
                self._start()
            self._meet()
        except BaseException:
            self.close()
            raise

    def ask(self, name: str, each: Sequence[Mapping[str, Any]] | None = None, **common: Any) -> list[Any]:
        """Call a method on all ranks and return their results, in rank order.

        Args:
            name: Name of a method of `rank.Rank`.
            each: Arguments of each rank; None: no individual arguments.
            common: Arguments of all ranks.

        Raises:
            OutOfMemory: Memory of one rank did not suffice. All restarted without their state, which is in the error.
            LearnerError: A rank died, and all are ended. Or the request cannot be pickled, and nothing was sent.
            Exception: Error that a rank raised. All are ended.
        """
        if self.closed:
            raise LearnerError("the learner's processes have ended; --resume continues from the last checkpoint")
        requests = [RankRequest(name, {**arguments, **common}) for arguments in each or [{}] * self.count]
        try:
            packed = [pickle_message(request) for request in requests]
        except (PicklingError, AttributeError, TypeError) as error:
            raise LearnerError(
                f"scale.learner_processes: another process cannot load this ({error}); define functions of a recipe "
                "at the top level of a module"
            ) from error
        for rank, (connection, message) in enumerate(zip(self._connections, packed, strict=True)):
            try:
                connection.send_bytes(message)
            except OSError:
                self._died(rank)
        responses = self._answers(range(self.count))
        if all(response.kind == "done" for response in responses):
            return [response.value for response in responses]
        self._raise(responses)
        short = next((rank for rank, response in enumerate(responses) if response.kind == "memory"), None)
        if short is None:
            text = next(response.text for response in responses if response.kind == "lost")
            self.close()
            raise LearnerError(
                f"the learner's processes lost connection ({text}); --resume continues from the last checkpoint"
            )
        raise OutOfMemory(f"learner process {short + 1} of {self.count}: out of memory", self._restart_ranks(responses))

    def close(self) -> None:
        """Close all connections and kill the ranks that this process started."""
        self.closed = True
        for connection in self._connections:
            connection.close()
        self._listener.close()
        for process in self._processes:  # they hold nothing that would have to be written
            process.kill()
            process.wait()
        for file in self._stderr:
            file.close()

    def _start(self) -> None:
        host, port = self._listener.address[:2]
        for rank in range(self.count):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.count),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                ADDRESS: f"{host}:{port}",
                KEY: self._key.hex(),
                "OMP_NUM_THREADS": str(threads_per_process(self.count)),
            }
            stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has died
            self._stderr.append(stderr)
            self._processes.append(
                subprocess.Popen(
                    rank_command(sys.path),
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                )
            )

    def _meet(self) -> None:
        """Wait until all ranks have joined.

        Raises:
            LearnerError: A rank ended, or not all ranks joined in time.
        """
        connections: dict[int, Connection] = {}
        deadline = time.monotonic() + _START_SECONDS
        listening: Any = self._listener
        listening._listener._socket.settimeout(_BETWEEN_LOOKS)  # the module has no other way
        while len(connections) < self.count:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):  # no connection yet, or one without the key
                for rank, process in enumerate(self._processes):
                    if process.poll() is not None:
                        self._died(rank)
                if time.monotonic() > deadline:
                    self.close()
                    raise LearnerError(
                        f"{len(connections)} of {self.count} learner processes joined within {_START_SECONDS:g} s; "
                        "start the missing ones, and check that they reach the address"
                    ) from None
                continue
            connections[receive_message(connection)] = connection
            send_message(connection, sys.path)
        self._connections = [connections[rank] for rank in range(self.count)]

    def _answers(self, ranks: Sequence[int]) -> list[RankResponse]:
        """Receive the responses of some ranks; if a rank died, all ranks are ended."""
        waiting = {self._connections[rank]: rank for rank in ranks}
        responses: dict[int, RankResponse] = {}
        while waiting:
            for connection in wait(list(waiting)):
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    responses[rank] = receive_message(connection)
                except (EOFError, OSError):
                    self._died(rank)
                if responses[rank].kind == "raised":  # other ranks may wait for it
                    self._raise([responses[rank]])
        return [responses[rank] for rank in ranks]

    def _raise(self, answers: Sequence[RankResponse]) -> None:
        for answer in answers:
            if answer.kind == "raised":
                self.close()
                if answer.value is not None:
                    raise answer.value
                last = answer.text.strip().splitlines()[-1]
                raise LearnerError(f"a learner process failed: {last}")

    def _restart_ranks(self, answers: Sequence[RankResponse]) -> list[Any]:
        """Have all ranks restart, and return the optimizer state that each has to restore."""
        idle = [rank for rank, answer in enumerate(answers) if answer.kind == "done"]
        for rank in idle:
            send_message(self._connections[rank], RankRequest("restart"))
        later = dict(zip(idle, self._answers(idle), strict=True))
        states = [later.get(rank, answer).value for rank, answer in enumerate(answers)]
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._meet()
        return states

    def _died(self, rank: int) -> None:
        """End all ranks and raise an error that describes the end of one.

        Raises:
            LearnerError: Always.
        """
        ended = ""
        if rank < len(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[rank].wait(_END_SECONDS)
            code = self._processes[rank].returncode
            ended = f" by signal {-code}" if code is not None and code < 0 else f" with code {code}"
            self._stderr[rank].seek(0)
            cause = _find_cause(self._stderr[rank].read().decode(errors="replace"))
            ended += f" ({cause})" if cause else ""
        self.close()
        raise LearnerError(
            f"learner process {rank + 1} of {self.count} ended{ended}, and the others were ended too; --resume "
            "continues from the last checkpoint"
        )


class OutOfMemory(torch.OutOfMemoryError):
    """Error: memory of one rank did not suffice, and all ranks restarted.

    Args:
        message: Text of the error.
        states: Optimizer state that each rank has to restore after the restart.
    """

    def __init__(self, message: str, states: list[Any]) -> None:
        super().__init__(message)
        self.states = states


def _find_cause(stderr: str) -> str:
    """Return the last line of a process, or the place of the fault that ended it; "" if it wrote nothing.

    >>> _find_cause('Fatal Python error: Segmentation fault\\n\\nCurrent thread 0x1:\\n  File "a.py", line 3 in f\\n')
    'Fatal Python error: Segmentation fault, File "a.py", line 3 in f'
    """
    lines = [line.strip() for line in stderr.strip().splitlines()]
    fatal = next((place for place, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if fatal is None:
        return lines[-1] if lines else ""
    current = next((place for place in range(fatal, len(lines)) if lines[place].startswith("Current thread")), fatal)
    frame = next((line for line in lines[current:] if line.startswith("File ")), "")
    return ", ".join(filter(None, (lines[fatal], frame)))


def read_rank_key() -> bytes:
    """Read the shared secret of the run and its ranks from the environment.

    Raises:
        LearnerError: The secret is missing or invalid.
    """
    try:
        key = bytes.fromhex(os.environ.get(KEY, ""))
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES:
        raise LearnerError(
            f"{KEY}: required with {ADDRESS}; the same secret for the run and its ranks, {2 * _KEY_BYTES} hexadecimal "
            "digits or more (`openssl rand -hex 32`)"
        )
    return key


def threads_per_process(count: int) -> int:
    """Return the number of PyTorch threads for each of `count` processes on this machine, at least 1."""
    return max(1, count_cores() // count)


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
