"""Can a recipe be learned by as many processes as it asks for? Said before anything is trained, with the numbers.

Easy to get wrong: on a GPU two processes cannot talk to each other through NCCL, so each needs one of its own; on a CPU
more processes than cores are only slow.
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
    """See that a recipe's learner can be divided.

    Args:
        policy: The one that learns.
        say: Told where it is slower than it could be.

    Raises:
        RecipeError: It cannot; the message says who can.
    """
    recipe, count, device = resolved.recipe, resolved.recipe.scale.learner_processes, policy.device
    if count == 1:
        return
    if recipe.learner.name != "local":
        raise resolved.error(_KEY, f'has no effect: learner "{recipe.learner.name}" has processes of its own or none')
    for stage, settings in recipe.own_stages.items():
        if settings.optimizer == "adamw_8bit":
            said = f"the blocks of {stage}.optimizer: adamw_8bit would be cut between {count} processes; use adamw"
            raise resolved.error(_KEY, f"{said}, whose state is divided: 1 / {count} of it for each")
    together = recipe.scale.learner_tensor_parallel
    if together > 1:
        try:
            tensor_plan(policy.model, together)
        except PolicyError as error:
            raise resolved.error(_TOGETHER, str(error)) from None
    if device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        if count > cores:
            say(f"{_KEY}: {count} processes share {cores} cores, and take turns; {cores} would be as quick")
        return
    there = torch.get_device_module(device).device_count()
    if device.type != "cuda":
        raise resolved.error(_KEY, f"{count} processes compute on CPUs or CUDA devices, not on {device.type}")
    if count > there:
        raise resolved.error(_KEY, f"{count} processes need a GPU each, and this machine has {there}; {there} at most")
