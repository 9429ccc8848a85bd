"""Which models does the learner of reinforcement work with? The policy, and beside it what the recipe asks for.

Easy to get wrong: the policy that is held on to is the one reinforcement began with, not the one a checkpoint in the
middle holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whetstone.assembly.assembly import Assembly, assemble
from whetstone.assembly.instantiate import part_of
from whetstone.errors import PolicyError
from whetstone.learning.factory import LEARNERS
from whetstone.learning.process_model import ProcessModel
from whetstone.learning.protocol import Learner
from whetstone.policies import CPU, find_device, has_adapters, load_policy, placed
from whetstone.recipe import OptimizerSettings, ReinforcementSettings, Resolved


def learner_for(assembly: Assembly, settings: ReinforcementSettings, warmed_up: Path | None) -> Learner:
    """A learner with a reference, a teacher and a process model, each where the recipe reads it.

    Args:
        warmed_up: The checkpoint reinforcement began with; None where it began with the untrained policy.
    """
    recipe, policy = assembly.resolved.recipe, assembly.policy
    load = partial(load_policy, trust_remote_code=recipe.policy.trust_remote_code)
    places = auxiliary_devices(assembly.resolved, settings, policy.device)
    reference = None
    wanted = settings.reference_kl > 0 or assembly.reads("reference_logprobs", "reference_sums")
    if wanted and not (has_adapters(policy.model) and warmed_up is None):
        began = load(warmed_up) if warmed_up is not None else assemble(assembly.resolved).policy
        reference = placed(began, places.home("reference")).model.requires_grad_(False)
    teacher, process = recipe.teacher, recipe.process_model
    return _made(
        assembly,
        settings,
        spec=assembly.learning_spec(settings),
        reference=reference,
        teacher=load(teacher.path, device=places.home("teacher")).model.requires_grad_(False) if teacher else None,
        reference_device=places.computed["reference"],
        teacher_device=places.computed["teacher"],
        process=ProcessModel(policy, process, settings) if process is not None else None,
    )


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


def imitator_for(assembly: Assembly, settings: OptimizerSettings) -> Learner:
    """A learner that imitates, and learns from no group."""
    return _made(assembly, settings)


def _made(assembly: Assembly, settings: OptimizerSettings, **given: Any) -> Learner:
    given |= {"policy": assembly.policy, "settings": settings}
    named = assembly.resolved.recipe.learner
    learner: Learner = part_of(assembly.resolved, "learner", "learner", named, LEARNERS, given, protocol=Learner)
    return learner
