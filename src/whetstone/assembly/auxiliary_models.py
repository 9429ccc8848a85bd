"""Which models does the learner of reinforcement work with? The policy, and beside it what the recipe asks for.

Easy to get wrong: the policy that is held on to is the one reinforcement began with, not the one a checkpoint in the
middle holds.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import Assembly, assemble
from whetstone.assembly.instantiate import part_of
from whetstone.assembly.placement import auxiliary_devices
from whetstone.learning.factory import LEARNERS
from whetstone.learning.process_model import ProcessModel
from whetstone.learning.protocol import Learner
from whetstone.policies import Policy, found_model, has_adapters, holds_adapters, load_policy, placed
from whetstone.recipe import OptimizerSettings, Part, ReinforcementSettings, Resolved

_GROUP = "whetstone.scaling.learners.group:group_learner"
"""What learns in several processes, by the name a recipe could have for it, too: it stands on this room."""


def learner_for(
    assembly: Assembly, settings: ReinforcementSettings, warmed_up: Path | None, *, staging: Path | None = None
) -> Learner:
    """A learner with a reference, a teacher and a process model, each where the recipe reads it.

    Args:
        warmed_up: The checkpoint reinforcement began with; None where it began with the untrained policy.
        staging: The folder of checkpoints, where learner processes write their shares of one; None: a temporary one.
    """
    recipe, policy = assembly.resolved.recipe, assembly.policy
    load = partial(load_policy, trust_remote_code=recipe.policy.trust_remote_code)
    places = auxiliary_devices(assembly.resolved, settings, policy.device)
    reference = None
    wanted = settings.holds_on or assembly.reads("reference_logprobs", "reference_sums")
    if wanted and not (began_without_adapters(assembly.resolved, policy) and warmed_up is None):
        began = load(warmed_up) if warmed_up is not None else assemble(assembly.resolved).policy
        reference = placed(began, places.home("reference")).model.requires_grad_(False)
    teacher, process = recipe.teacher, recipe.implicit_prm
    taught = None
    if teacher is not None and teacher.path is not None:
        taught = load(teacher.path, device=places.home("teacher")).model.requires_grad_(False)
    return _made(
        assembly,
        settings,
        staging=staging,
        spec=assembly.learning_spec(settings),
        reference=reference,
        teacher=taught,
        own_teacher=teacher is not None and teacher.path is None,
        reference_device=places.computed["reference"],
        teacher_device=places.computed["teacher"],
        process=ProcessModel(policy, process, settings) if process is not None else None,
    )


def began_without_adapters(resolved: Resolved, policy: Policy) -> bool:
    """Whether a policy with its adapters off is the one its stage began with: they are new, and begin as nothing."""
    path = resolved.recipe.policy.path
    if not has_adapters(policy.model) or path is None:
        return has_adapters(policy.model)
    trusted = resolved.recipe.policy.trust_remote_code
    return not holds_adapters(found_model(path, revision=resolved.recipe.policy.revision, trust_remote_code=trusted))


def imitator_for(assembly: Assembly, settings: OptimizerSettings, *, staging: Path | None = None) -> Learner:
    """A learner that imitates, and learns from no group.

    Args:
        staging: As of `learner_for`.
    """
    return _made(assembly, settings, staging=staging)


def _made(assembly: Assembly, settings: OptimizerSettings, **given: Any) -> Learner:
    given |= {"policy": assembly.policy, "settings": settings}
    recipe = assembly.resolved.recipe
    named = recipe.learner
    if recipe.scale.learner_processes > 1:
        together = recipe.scale.learner_tensor_parallel
        named = Part(name=_GROUP, processes=recipe.scale.learner_processes, tensor_parallel=together)
    learner: Learner = part_of(assembly.resolved, "learner", "learner", named, LEARNERS, given, protocol=Learner)
    return learner
