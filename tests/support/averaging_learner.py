"""A custom learner in one file: two processes with half of the groups each, and their mean gradient.

The other process starts as a copy and makes the same updates; both synchronize at each gradient.
"""

import multiprocessing
import os
import pickle
import socket
from dataclasses import replace
from typing import ClassVar

import torch
import torch.distributed as dist

from support.forward_passes import recorder
from whetstone.learning.forward_passes import LocalPasses
from whetstone.learning.learner import LocalLearner


class _Averaging(LocalPasses):
    def apply(self):
        for parameter in self.policy.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        return super().apply()


def _join(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def _other(pipe, port, state):
    policy, settings, spec = pickle.loads(state)
    torch.set_num_threads(1)
    _join(1, port)
    learner = LocalLearner(recorder(policy, settings, _Averaging), spec)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return  # training ended
        getattr(learner, name)(*arguments)
        pipe.send(sum(float(parameter.detach().double().sum()) for parameter in policy.model.parameters()))


class Averaging(LocalLearner):
    """`learner: support.averaging_learner:Averaging`."""

    processes: ClassVar[list[int]] = []

    def __init__(self, *, policy, settings, spec=None):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._pipe, other_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        state = pickle.dumps((policy, settings, spec))  # unpickled objects would be shared and stepped twice
        other = context.Process(target=_other, args=(other_end, port, state), daemon=True)
        other.start()
        if dist.is_initialized():
            dist.destroy_process_group()
        _join(0, port)
        super().__init__(recorder(policy, settings, _Averaging), spec)
        Averaging.processes.append(other.pid)
        assert other.pid != os.getpid()

    def _both(self, name, first_half, second_half):
        self._pipe.send((name, second_half))
        result = getattr(super(), name)(*first_half)
        own_sum = sum(float(parameter.detach().double().sum()) for parameter in self.trainer.policy.model.parameters())
        other_sum = self._pipe.recv()
        assert abs(other_sum - own_sum) < 1e-4, f"after {name} the two have other weights: {other_sum - own_sum}"
        return result

    def update(self, batch):
        first_half, second_half = batch.groups[::2], batch.groups[1::2]
        return self._both("update", (replace(batch, groups=first_half),), (replace(batch, groups=second_half),))

    def imitate(self, segments):
        return self._both("imitate", (segments[::2],), (segments[1::2],))

    def end_step(self):
        return self._both("end_step", (), ())

    def load_state_dict(self, state):
        return self._both("load_state_dict", (state,), (state,))
