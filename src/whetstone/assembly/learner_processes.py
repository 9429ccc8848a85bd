"""Checks before training whether a recipe's learner can run in the requested number of processes.

Note:
    On a GPU two processes cannot communicate through NCCL, so each needs a separate GPU; on a CPU more processes than
    cores are only slow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch

from whetstone.errors import PolicyError
from whetstone.policies import Policy, tensor_plan
from whetstone.recipe import Resolved

_KEY, _TOGETHER = "scale.learner_processes", "scale.learner_tensor_parallel"


def check_learner_processes(resolved: Resolved, policy: Policy, *, say: Callable[[str], None]) -> None:
    """Check that a recipe's learner can be divided among processes.

    Args:
        resolved: Recipe.
        policy: Policy in training.
        say: Called with a line if training is slower than it could be.

    Raises:
        RecipeError: If it cannot; the message states the possible settings.
    """
    recipe, count, device = resolved.recipe, resolved.recipe.scale.learner_processes, policy.device
    if count == 1:
        return
    if recipe.learner.name != "local":
        raise resolved.error(_KEY, f'has no effect: learner "{recipe.learner.name}" does not support several processes')
    for stage, settings in recipe.own_stages.items():
        if settings.optimizer == "adamw_8bit":
            problem = (
                f"the blocks of {stage}.optimizer: adamw_8bit cannot be divided among {count} processes; use adamw"
            )
            raise resolved.error(_KEY, f"{problem}, of whose state each process has 1 / {count}")
    together = recipe.scale.learner_tensor_parallel
    if together > 1:
        try:
            tensor_plan(policy.model, together)
        except PolicyError as error:
            raise resolved.error(_TOGETHER, str(error)) from None
    if device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        if count > cores:
            say(f"{_KEY}: {count} processes share {cores} cores; {cores} processes are as fast")
        return
    num_devices = torch.get_device_module(device).device_count()
    if device.type != "cuda":
        raise resolved.error(_KEY, f"several processes require CPUs or CUDA devices, got {device.type}")
    if count > num_devices:
        raise resolved.error(
            _KEY, f"{count} processes need {count} GPUs, but this machine has {num_devices}; set at most {num_devices}"
        )
