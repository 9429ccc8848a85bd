"""Devices of a recipe's models: the policy, and the frozen models `reference` and `teacher`.

Note:
    A missing device otherwise causes an error only when a tensor is created there. Devices are therefore looked up
    before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from whetstone.errors import PolicyError
from whetstone.policies import CPU, check_dtype, find_device
from whetstone.recipe import OptimizerSettings, ReinforcementSettings, Resolved


def policy_device(resolved: Resolved) -> torch.device:
    """Return the device of the recipe's policy on this machine (`policy.device`).

    Raises:
        RecipeError: If the machine has no such device, or the device does not support the precision.
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
    """Devices of the frozen models `reference` and `teacher`."""

    computed: Mapping[str, torch.device]
    """Device on which each model's forward pass runs, by model."""
    offloaded: Collection[str]
    """Models that are stored on the CPU between their forward passes."""

    def storage_device(self, model: str) -> torch.device:
        """Return the device on which a model is stored between forward passes."""
        return CPU if model in self.offloaded else self.computed[model]


def auxiliary_devices(resolved: Resolved, settings: OptimizerSettings, own: torch.device) -> AuxiliaryDevices:
    """Return the devices of the reference and the teacher.

    Args:
        resolved: Recipe.
        settings: Settings of the stage.
        own: Device of the policy, which is the default.

    Raises:
        RecipeError: If this machine has no such device.
    """
    teacher = resolved.recipe.teacher
    wanted = {"teacher.device": teacher.device if teacher is not None else None, "reinforcement.reference_device": None}
    offloaded = {"teacher"} if teacher is not None and teacher.offload else set()
    if isinstance(settings, ReinforcementSettings):
        wanted["reinforcement.reference_device"] = settings.reference_device
        offloaded |= {"reference"} if settings.reference_offload else set()
    devices = {}
    for key, named in wanted.items():
        try:
            devices[key] = own if named is None else find_device(named)
        except PolicyError as error:
            raise resolved.error(key, str(error)) from None
    computed = {"teacher": devices["teacher.device"], "reference": devices["reinforcement.reference_device"]}
    return AuxiliaryDevices(computed, offloaded)


def list_ineffective_keys(resolved: Resolved, own: torch.device) -> list[str]:
    """Return the keys that offload a model to the CPU although it runs there.

    Args:
        resolved: Recipe.
        own: Device of the policy.
    """
    recipe, without_use = resolved.recipe, []
    for key, stage in recipe.own_stages.items():
        if stage.optimizer_offload and own == CPU:
            without_use.append(f"{key}.optimizer_offload")
    if recipe.reinforcement is not None:
        places = auxiliary_devices(resolved, recipe.reinforcement, own)
        keys = {"reference": "reinforcement.reference_offload", "teacher": "teacher.offload"}
        without_use += [keys[name] for name in sorted(places.offloaded) if places.computed[name] == CPU]
    return without_use
