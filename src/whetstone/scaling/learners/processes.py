"""How does a run keep the processes that learn for it? Started or joined by others, asked all at once, ended together.

Easy to get wrong: one that died never answers, and one that waits for it never does, either. Whoever listens hears
sockets close, and ends them all.
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
from whetstone.scaling.learners.messages import ADDRESS, KEY, Answer, Question, command_of, pack, receive, send

_START_SECONDS = 300.0
"""How long ranks may take to join; PyTorch loads slowly where many processes load it from one disk."""
_END_SECONDS = 5.0
_KEY_BYTES = 16
_BETWEEN_LOOKS = 0.5


class LearnerProcesses:
    """Ranks, and a connection to each.

    Args:
        count: How many.
        address: `host:port` where ranks that others start (torchrun) join, by the key in the environment; None: they
            are started here.
    """

    def __init__(self, count: int, *, address: str | None = None) -> None:
        self.count = count
        self.joined = address is not None
        """Whether others started them."""
        host, _, port = (address or "127.0.0.1:0").rpartition(":")
        self._key = key_in_environment() if self.joined else secrets.token_bytes(32)
        self._listener = Listener((host, int(port)), backlog=count, authkey=self._key)
        self._said: list[IO[bytes]] = []
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

    def ask(self, name: str, each: Sequence[Mapping[str, Any]] | None = None, **all_alike: Any) -> list[Any]:
        """What the ranks answer, in their order.

        Args:
            name: A method of `rank.Rank`.
            each: What each is given.
            all_alike: What all are given.

        Raises:
            OutOfMemory: Memory of one did not suffice. All have begun anew and remember nothing; the error has what
                they are to remember.
            LearnerError: One died, and all are ended. Or this cannot be handed over, and nothing was asked.
            Exception: What one raised. All are ended.
        """
        if self.closed:
            raise LearnerError("the learner's processes have ended; --resume goes on from the last checkpoint")
        questions = [Question(name, {**given, **all_alike}) for given in each or [{}] * self.count]
        try:
            packed = [pack(question) for question in questions]
        except (PicklingError, AttributeError, TypeError) as error:
            raise LearnerError(
                f"scale.learner_processes: another process cannot have this ({error}); functions of a recipe are "
                "defined at the top of a module"
            ) from error
        for rank, (connection, message) in enumerate(zip(self._connections, packed, strict=True)):
            try:
                connection.send_bytes(message)
            except OSError:
                self._died(rank)
        answers = self._answers(range(self.count))
        if all(answer.kind == "done" for answer in answers):
            return [answer.value for answer in answers]
        self._raise(answers)
        short = next((rank for rank, answer in enumerate(answers) if answer.kind == "memory"), None)
        if short is None:
            text = next(answer.text for answer in answers if answer.kind == "lost")
            self.close()
            raise LearnerError(
                f"the learner's processes lost touch ({text}); --resume goes on from the last checkpoint"
            )
        raise OutOfMemory(f"learner process {short + 1} of {self.count}: out of memory", self._anew(answers))

    def close(self) -> None:
        """End all of them."""
        self.closed = True
        for connection in self._connections:
            connection.close()
        self._listener.close()
        for process in self._processes:  # they hold nothing that would have to be written
            process.kill()
            process.wait()
        for file in self._said:
            file.close()

    def _start(self) -> None:
        host, port = self._listener.address[:2]
        for rank in range(self.count):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.count),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                ADDRESS: f"{host}:{port}",
                KEY: self._key.hex(),
                "OMP_NUM_THREADS": str(threads_of(self.count)),
            }
            said = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has died
            self._said.append(said)
            self._processes.append(
                subprocess.Popen(
                    command_of(sys.path),
                    env={**os.environ, **own},
                    stdin=subprocess.DEVNULL,
                    stderr=said,
                )
            )

    def _meet(self) -> None:
        """Wait until all ranks have joined."""
        there: dict[int, Connection] = {}
        deadline = time.monotonic() + _START_SECONDS
        listening: Any = self._listener
        listening._listener._socket.settimeout(_BETWEEN_LOOKS)  # the module has no other way
        while len(there) < self.count:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):  # nobody yet, or somebody who has no business here
                for rank, process in enumerate(self._processes):
                    if process.poll() is not None:
                        self._died(rank)
                if time.monotonic() > deadline:
                    self.close()
                    raise LearnerError(
                        f"{len(there)} of {self.count} learner processes joined within {_START_SECONDS:g} s"
                    ) from None
                continue
            there[receive(connection)] = connection
            send(connection, sys.path)
        self._connections = [there[rank] for rank in range(self.count)]

    def _answers(self, ranks: Sequence[int]) -> list[Answer]:
        """What these say; one that died ends all."""
        waiting = {self._connections[rank]: rank for rank in ranks}
        found: dict[int, Answer] = {}
        while waiting:
            for connection in wait(list(waiting)):
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    found[rank] = receive(connection)
                except (EOFError, OSError):
                    self._died(rank)
                if found[rank].kind == "raised":  # the others may wait for it
                    self._raise([found[rank]])
        return [found[rank] for rank in ranks]

    def _raise(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.kind == "raised":
                self.close()
                if answer.value is not None:
                    raise answer.value
                last = answer.text.strip().splitlines()[-1]
                raise LearnerError(f"a learner process failed: {last}")

    def _anew(self, answers: Sequence[Answer]) -> list[Any]:
        """Have all ranks begin anew; what each is to remember."""
        idle = [rank for rank, answer in enumerate(answers) if answer.kind == "done"]
        for rank in idle:
            send(self._connections[rank], Question("restart"))
        later = dict(zip(idle, self._answers(idle), strict=True))
        kept = [later.get(rank, answer).value for rank, answer in enumerate(answers)]
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._meet()
        return kept

    def _died(self, rank: int) -> None:
        """
        Raises:
            LearnerError: Always.
        """
        ended = ""
        if rank < len(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[rank].wait(_END_SECONDS)
            code = self._processes[rank].returncode
            ended = f" by signal {-code}" if code is not None and code < 0 else f" with code {code}"
            self._said[rank].seek(0)
            lines = self._said[rank].read().decode(errors="replace").strip().splitlines()
            ended += f" ({lines[-1]})" if lines else ""
        self.close()
        raise LearnerError(
            f"learner process {rank + 1} of {self.count} ended{ended}, and the others with it; --resume goes on from "
            "the last checkpoint"
        )


class OutOfMemory(torch.OutOfMemoryError):
    """Memory of one rank did not suffice, which is said of all.

    Args:
        kept: What each rank is to remember, now that all have begun anew.
    """

    def __init__(self, message: str, kept: list[Any]) -> None:
        super().__init__(message)
        self.kept = kept


def key_in_environment() -> bytes:
    """The secret of a run and the ranks that join it.

    Raises:
        LearnerError: There is none, or it is none.
    """
    try:
        key = bytes.fromhex(os.environ.get(KEY, ""))
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES:
        raise LearnerError(
            f"{KEY}: beside {ADDRESS} it holds the same secret for the run and its ranks, {2 * _KEY_BYTES} hexadecimal "
            "digits or more (`openssl rand -hex 32`)"
        )
    return key


def threads_of(count: int) -> int:
    """Threads of each of so many processes on this machine."""
    return max(1, cores() // count)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
