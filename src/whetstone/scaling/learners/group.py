"""What does a recipe with `scale.learner_processes` learn with? A learner whose passes several ranks compute."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import Module

from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.process_model import ProcessModel
from whetstone.learning.spec import LearningSpec
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.learners.group_passes import GroupPasses
from whetstone.scaling.learners.messages import ADDRESS
from whetstone.scaling.learners.processes import LearnerProcesses
from whetstone.scaling.learners.shard_passes import Frozen


class GroupLearner(LocalLearner):
    """A learner of several processes; see `protocol.Learner`.

    Args:
        trainer: Trainer that uses `passes`.
        passes: Passes that the processes compute.
        spec: As of `LocalLearner`.
    """

    def __init__(self, trainer: ModelTrainer, passes: GroupPasses, spec: LearningSpec | None = None) -> None:
        super().__init__(trainer, spec)
        self._passes = passes

    def close(self) -> None:
        """End the processes, unless others started them."""
        if not self._passes.processes.joined:
            self._passes.close()


def group_learner(
    *,
    processes: int,
    tensor_parallel: int = 1,
    policy: Policy,
    settings: OptimizerSettings,
    spec: LearningSpec | None = None,
    reference: Module | None = None,
    teacher: Module | None = None,
    own_teacher: bool = False,
    process: ProcessModel | None = None,
    reference_device: torch.device | None = None,
    teacher_device: torch.device | None = None,
    staging: Path | None = None,
) -> GroupLearner:
    """A learner of so many processes, each on a device of its own where the policy is on one. They are started here,
    unless the environment has an address (`WHETSTONE_LEARNER_ADDRESS`) where those that others start join.

    Args:
        processes: How many.
        tensor_parallel: How many of them compute each layer together.
        staging: A folder on the file system of checkpoints, where ranks write their share of one.
        reference_device: Not asked: one that lies on the CPU, beside a policy on a device, stays there between passes.
        teacher_device: As for the reference.
    """
    if staging is not None:
        _clear(staging)
    frozen = dict(_frozen(policy, reference=reference, teacher=teacher))
    group = _processes(processes)
    try:
        passes = GroupPasses(group, policy, settings, together=tensor_parallel, frozen=frozen, staging=staging)
    except BaseException:
        group.close()
        raise
    trainer = ModelTrainer(
        policy, settings, reference=reference, teacher=teacher, own_teacher=own_teacher, process=process, passes=passes
    )
    return GroupLearner(trainer, passes, spec)


_joined: dict[int, LearnerProcesses] = {}
"""By their number, those that others started: they stay for all stages of a run."""


def _processes(count: int) -> LearnerProcesses:
    address = os.environ.get(ADDRESS)
    if address is None:
        return LearnerProcesses(count)
    if count not in _joined or _joined[count].closed:
        _joined[count] = LearnerProcesses(count, address=address)
        atexit.register(_joined[count].close)
    return _joined[count]


def _frozen(policy: Policy, **models: Module | None) -> Iterator[tuple[str, Frozen]]:
    for name, model in models.items():
        if model is not None:
            lies = next(model.parameters()).device
            yield name, Frozen(model, offload=lies.type == "cpu" and policy.device.type != "cpu")


def _clear(staging: Path) -> None:
    """Take away what a run that was killed had begun to save."""

    for folder in staging.glob(".shards-*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
