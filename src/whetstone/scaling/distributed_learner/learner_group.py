"""Distributed learner: a learner whose forward passes several ranks compute (`scale.learner_processes`)."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from whetstone.inference import Member
from whetstone.learning.forward_passes import select_frozen_members
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import LearningSpec
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.distributed_learner.group_passes import GroupPasses
from whetstone.scaling.distributed_learner.messages import ADDRESS
from whetstone.scaling.distributed_learner.processes import LearnerProcesses
from whetstone.scaling.distributed_learner.shard_passes import Frozen


class GroupLearner(LocalLearner):
    """Learner whose forward passes several processes compute; implements `learning.protocol.Learner`.

    Args:
        trainer: Trainer that uses `passes`.
        passes: Forward passes that the processes compute.
        spec: See `LocalLearner`.
    """

    def __init__(self, trainer: ModelTrainer, passes: GroupPasses, spec: LearningSpec | None = None) -> None:
        super().__init__(trainer, spec)
        self._passes = passes

    def close(self) -> None:
        """End the rank processes; externally started ones continue for the next stage."""
        if not self._passes.processes.joined:
            self._passes.close()


def group_learner(
    *,
    processes: int,
    tensor_parallel: int = 1,
    policy: Policy,
    settings: OptimizerSettings,
    spec: LearningSpec | None = None,
    members: Mapping[str, Member] = MappingProxyType({}),
    staging: Path | None = None,
) -> GroupLearner:
    """Create a learner of several processes, each on its own device if the policy is on a GPU.

    This process starts them. If the environment variable `WHETSTONE_LEARNER_ADDRESS` is set, externally started
    processes join at that address instead.

    Args:
        processes: Number of processes.
        tensor_parallel: Number of processes that compute each layer together.
        policy: Policy to train.
        settings: Settings of the optimizer.
        spec: See `LocalLearner`.
        members: Same as for `ModelTrainer`. A frozen model on the CPU, with a policy on a device, is on the device only
            during its forward passes.
        staging: Folder on the file system of checkpoints, where ranks write their shards of the optimizer state.
    """
    if staging is not None:
        _clear(staging)
    frozen = {
        name: Frozen(each.policy.model, offload=each.policy.device.type == "cpu" and policy.device.type != "cpu")
        for name, each in select_frozen_members(policy, members).items()
    }
    group = _processes(processes)
    try:
        passes = GroupPasses(group, policy, settings, together=tensor_parallel, frozen=frozen, staging=staging)
    except BaseException:
        group.close()
        raise
    return GroupLearner(ModelTrainer(policy, settings, members=members, passes=passes), passes, spec)


_joined: dict[int, LearnerProcesses] = {}
"""Externally started processes by their number; they stay for all stages of a run."""


def _processes(count: int) -> LearnerProcesses:
    address = os.environ.get(ADDRESS)
    if address is None:
        return LearnerProcesses(count)
    if count not in _joined or _joined[count].closed:
        _joined[count] = LearnerProcesses(count, address=address)
        atexit.register(_joined[count].close)
    return _joined[count]


def _clear(staging: Path) -> None:
    """Delete unfinished checkpoint shards of a run that was killed."""

    for folder in staging.glob(".shards-*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
