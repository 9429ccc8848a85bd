"""On which devices does a recipe put its models? The policy's, and those of the frozen models beside it.

Easy to get wrong: a machine that lacks a device is found out when a tensor is made there. So each is looked for before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from whetstone.errors import PolicyError
from whetstone.policies import CPU, check_dtype, find_device
from whetstone.recipe import OptimizerSettings, ReinforcementSettings, Resolved


def device_of(resolved: Resolved) -> torch.device:
    """Where the recipe's policy is computed on this machine.

    Raises:
        RecipeError: The machine has no such device, or the device not the numbers that are asked of it.
    """
    wanted = resolved.recipe.policy
    try:
        device = find_device(wanted.device)
    except PolicyError as error:
        raise resolved.error("policy.device", str(error)) from None
    try:
        check_dtype(wanted.dtype, device)
    except PolicyError as error:
        raise resolved.error("policy.dtype", str(error)) from None
    return device


@dataclass(frozen=True, slots=True)
class AuxiliaryDevices:
    """Where frozen models beside the policy are, by `reference` and `teacher`."""

    computed: Mapping[str, torch.device]
    offloaded: Collection[str]
    """Those that are kept on the CPU between their passes."""

    def home(self, model: str) -> torch.device:
        """Where one is kept."""
        return CPU if model in self.offloaded else self.computed[model]


def auxiliary_devices(resolved: Resolved, settings: OptimizerSettings, own: torch.device) -> AuxiliaryDevices:
    """Where a recipe puts the frozen models beside the policy.

    Args:
        own: The policy's device.

    Raises:
        RecipeError: This machine has no such device.
    """
    teacher = resolved.recipe.teacher
    wanted = {"teacher.device": teacher.device if teacher is not None else None, "reinforcement.reference_device": None}
    offloaded = {"teacher"} if teacher is not None and teacher.offload else set()
    if isinstance(settings, ReinforcementSettings):
        wanted["reinforcement.reference_device"] = settings.reference_device
        offloaded |= {"reference"} if settings.reference_offload else set()
    found = {}
    for key, named in wanted.items():
        try:
            found[key] = own if named is None else find_device(named)
        except PolicyError as error:
            raise resolved.error(key, str(error)) from None
    computed = {"teacher": found["teacher.device"], "reference": found["reinforcement.reference_device"]}
    return AuxiliaryDevices(computed, offloaded)


def without_effect(resolved: Resolved, own: torch.device) -> list[str]:
    """Keys of a recipe that keep on the CPU what is there all the same.

    Args:
        own: The policy's device.
    """
    recipe, found = resolved.recipe, []
    for key, stage in recipe.own_stages.items():
        if stage.optimizer_offload and own == CPU:
            found.append(f"{key}.optimizer_offload")
    if recipe.reinforcement is not None:
        places = auxiliary_devices(resolved, recipe.reinforcement, own)
        keys = {"reference": "reinforcement.reference_offload", "teacher": "teacher.offload"}
        found += [keys[name] for name in sorted(places.offloaded) if places.computed[name] == CPU]
    return found
