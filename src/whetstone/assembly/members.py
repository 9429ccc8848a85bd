"""Members: the models of a run, each with its engine and its learner, which are made once.

The policy, the members of `policies`, reference, teacher, models of `models` and models in seats are members. Frozen
members that name the same folder share one loaded model (`load_frozen`).

Note:
    The reference is the policy with which reinforcement starts, not that of a checkpoint within the stage.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from whetstone.assembly.instantiate import part_of
from whetstone.assembly.member_recipes import recipe_of_member
from whetstone.assembly.placement import AuxiliaryDevices, auxiliary_devices
from whetstone.chat import Chat
from whetstone.inference import ENGINES, Engine
from whetstone.learning.factory import LEARNERS
from whetstone.learning.member_learner import MemberLearner
from whetstone.learning.process_model import ProcessModel
from whetstone.learning.protocol import Learner
from whetstone.learning.unchanged import Unchanged
from whetstone.policies import (
    Policy,
    found_model,
    has_adapters,
    holds_adapters,
    load_frozen,
    load_policy,
    placed,
)
from whetstone.recipe import (
    OfflineSettings,
    OptimizerSettings,
    Part,
    PreferenceSettings,
    PretrainingSettings,
    ReinforcementSettings,
    Resolved,
    SamplingSettings,
    SupervisedSettings,
)
from whetstone.record.checkpoint import MEMBERS, load_member

if TYPE_CHECKING:
    from whetstone.assembly.assembly import Assembly

_GROUP = "whetstone.scaling.learners.group:group_learner"
"""Learner in several processes; a recipe can name it, too, because it depends on this package."""


class Member:
    """A model in a run. Policy, chat template, engine and learner are made when they are first requested, and kept.

    Args:
        name: Name in messages and in checkpoints.
        load: Function that returns the policy.
        chat: Function that returns the chat template of a policy; None: the member has that of the first one.
        engine: Function that returns an engine for a policy; None: the member is not sampled.
        learner: Function that returns a learner for a policy; None: the member is frozen.
        is_stored: A checkpoint has the weights.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Policy],
        *,
        chat: Callable[[Policy], Chat] | None = None,
        engine: Callable[[Policy], Engine] | None = None,
        learner: Callable[[Policy], Learner] | None = None,
        is_stored: bool = False,
    ) -> None:
        self.name, self.is_trained, self.is_stored = name, learner is not None, is_stored
        self._load, self._make_chat, self._make_engine, self._make_learner = load, chat, engine, learner
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @cached_property
    def policy(self) -> Policy:
        """Model and tokenizer."""
        return self._load()

    @cached_property
    def chat(self) -> Chat:
        """Chat template of the model."""
        assert self._make_chat is not None
        return self._make_chat(self.policy)

    @property
    def engine(self) -> Engine:
        """Engine that samples from the model. An engine belongs to the event loop that first requests it; in another
        loop there is another one."""
        assert self._make_engine is not None
        loop = asyncio._get_running_loop()
        if self._engine is None or (self._loop is not None and loop is not None and self._loop is not loop):
            self._engine, self._loop = self._make_engine(self.policy), loop
        self._loop = self._loop or loop
        return self._engine

    @cached_property
    def learner(self) -> Learner:
        """Learner that trains the model."""
        assert self._make_learner is not None
        return self._make_learner(self.policy)

    async def close(self) -> None:
        """Close the engine, if there is one."""
        if self._engine is not None:
            await self._engine.close()


def frozen_engine(policy: Policy, *, max_sequences: int) -> Engine:
    """Return a local engine for a frozen model."""
    return ENGINES["local"](policy=policy, max_sequences=max_sequences)


def open_members(
    assembly: Assembly, warmed_up: Path | None, *, staging: Path | None = None, is_start: bool = False
) -> dict[str, Member]:
    """Return the members of `policies` after the first, with which reinforcement starts or continues.

    Args:
        warmed_up: Same as for `learner_for`.
        staging: Same as for `learner_for`.
        is_start: Same as for `learner_for`.
    """
    names = list(assembly.resolved.recipe.policies)[1:]
    members = {name: _open_member(assembly, name, warmed_up, staging, is_start) for name in names}
    for member in members.values():  # each has its own copy of the weights, before the first update
        assert member.engine is not None
    return members


def _open_member(assembly: Assembly, name: str, warmed_up: Path | None, staging: Path | None, is_start: bool) -> Member:
    recipe, resolved = assembly.resolved.recipe, recipe_of_member(assembly.resolved, name)
    settings, first = recipe.policies[name], assembly.policy
    begins_as_first = settings.like == next(iter(recipe.policies)) and resolved.recipe.policy.path == recipe.policy.path
    stored = assembly.checkpoint / MEMBERS / name if assembly.checkpoint is not None else None
    policy, optimizer = None, None
    if stored is not None and stored.is_dir():
        wanted = resolved.recipe.policy
        base = Path(wanted.path) if wanted.path is not None else None
        policy, optimizer = load_member(stored, trust_remote_code=wanted.trust_remote_code, base_path=base)
    elif begins_as_first:
        policy = replace(first, model=copy.deepcopy(first.model), critic=copy.deepcopy(first.critic))
    own = assembly.with_components(resolved=resolved, _policy=policy, member=name)
    for component in ("loaded", "policy", "chat"):
        own.__dict__.pop(component, None)
    if own.policy.tokenizer.get_vocab() != first.tokenizer.get_vocab():
        raise assembly.resolved.error(f"policies.{name}", "has other tokens than the first member")
    stage = resolved.recipe.reinforcement

    def learner(_: Policy) -> Learner:
        assert stage is not None
        began, begins = warmed_up if begins_as_first else None, is_start and optimizer is None
        new = learner_for(own, stage, began, staging=staging, is_start=begins)
        if optimizer:
            new.load_state_dict(optimizer)
        return new

    return Member(
        name,
        lambda: own.policy,
        chat=lambda _: own.chat,
        engine=lambda _: own.engine(),
        learner=learner if settings.trained else None,
        is_stored=settings.trained or begins_as_first,
    )


def stored_members(assembly: Assembly) -> dict[str, tuple[Policy, dict[str, Any]]]:
    """Return the policy of each member that a checkpoint has, and the state of its learner if it is trained."""
    members = [member for member in assembly.members.values() if member.is_stored]
    return {each.name: (each.policy, each.learner.state_dict() if each.is_trained else {}) for each in members}


def learner_of_stage(
    assembly: Assembly, settings: OptimizerSettings, warmed_up: Path | None, *, staging: Path, is_start: bool
) -> Learner:
    """Return the learner of a stage; in stages that sample and train, that of all trained members.

    Args:
        settings: Settings of the stage.
        warmed_up: Same as for `learner_for`.
        staging: Same as for `learner_for`.
        is_start: Same as for `learner_for`.
    """
    if isinstance(settings, SupervisedSettings | PretrainingSettings):
        return imitator_for(assembly, settings, staging=staging)
    if isinstance(settings, SamplingSettings):
        return Unchanged(assembly.policy)
    learning = assembly.resolved.recipe.reinforcement
    assert learning is not None
    first = learner_for(assembly, learning, warmed_up, staging=staging, is_start=is_start)
    if isinstance(settings, PreferenceSettings | OfflineSettings):
        return first
    assembly.members = open_members(assembly, warmed_up, staging=staging, is_start=is_start)
    others = {name: member.learner for name, member in assembly.trained.items()}
    return MemberLearner({assembly.member: first, **others}) if others else first


def learner_for(
    assembly: Assembly,
    settings: ReinforcementSettings,
    warmed_up: Path | None,
    *,
    staging: Path | None = None,
    is_start: bool = False,
) -> Learner:
    """Return a learner with a reference, a teacher and a process model, each if the recipe reads it.

    Args:
        warmed_up: Checkpoint with which reinforcement starts; None: it starts with the untrained policy.
        staging: Folder of checkpoints, for the shards of learner processes; None: a temporary folder.
        is_start: The policy has the weights with which reinforcement starts, so that the reference is a copy of it.
    """
    recipe, policy = assembly.resolved.recipe, assembly.policy
    places = auxiliary_devices(assembly.resolved, settings, policy.device)
    reference = _reference(assembly, settings, places, warmed_up, is_start=is_start)
    teacher, process = recipe.teacher, recipe.implicit_prm
    teaching = None
    if teacher is not None and teacher.path is not None:
        load = load_policy if "teacher" in places.offloaded else load_frozen
        trusted = recipe.policy.trust_remote_code
        teaching = Member(
            "teacher", partial(load, teacher.path, trust_remote_code=trusted, device=places.home("teacher"))
        )
    return _build_learner(
        assembly,
        settings,
        staging=staging,
        spec=assembly.learning_spec(settings),
        reference=_frozen_module(reference),
        teacher=_frozen_module(teaching),
        own_teacher=teacher is not None and teacher.path is None,
        reference_device=places.computed["reference"],
        teacher_device=places.computed["teacher"],
        process=ProcessModel(policy, process, settings) if process is not None else None,
    )


def _reference(
    assembly: Assembly,
    settings: ReinforcementSettings,
    places: AuxiliaryDevices,
    warmed_up: Path | None,
    *,
    is_start: bool,
) -> Member | None:
    """Return the policy with which reinforcement starts; None if nothing reads it, or if it is the policy without its
    adapters."""
    policy, resolved = assembly.policy, assembly.resolved
    if not (settings.holds_on or assembly.reads("reference_logprobs", "reference_sums")):
        return None
    if began_without_adapters(resolved, policy) and warmed_up is None:
        return None

    def load() -> Policy:
        # a checkpoint of adapters has its base model in float32
        if is_start and (not has_adapters(policy.model) or policy.dtype == torch.float32):
            began = Policy(copy.deepcopy(policy.model), policy.tokenizer)
        elif warmed_up is not None:
            began = load_policy(warmed_up, trust_remote_code=resolved.recipe.policy.trust_remote_code)
        else:
            began = assembly.restart().policy
        return placed(began, places.home("reference"))

    return Member("reference", load)


def _frozen_module(member: Member | None) -> torch.nn.Module | None:
    return None if member is None else member.policy.model.requires_grad_(False)


def began_without_adapters(resolved: Resolved, policy: Policy) -> bool:
    """Return whether the policy without its adapters is the one its stage starts with: the adapters are new."""
    path = resolved.recipe.policy.path
    if not has_adapters(policy.model) or path is None:
        return has_adapters(policy.model)
    trusted = resolved.recipe.policy.trust_remote_code
    return not holds_adapters(found_model(path, revision=resolved.recipe.policy.revision, trust_remote_code=trusted))


def imitator_for(assembly: Assembly, settings: OptimizerSettings, *, staging: Path | None = None) -> Learner:
    """Return a learner that imitates, and trains on no group.

    Args:
        staging: Same as for `learner_for`.
    """
    return _build_learner(assembly, settings, staging=staging)


def _build_learner(assembly: Assembly, settings: OptimizerSettings, **arguments: Any) -> Learner:
    arguments |= {"policy": assembly.policy, "settings": settings}
    recipe = assembly.resolved.recipe
    named = recipe.learner
    if recipe.scale.learner_processes > 1:
        together = recipe.scale.learner_tensor_parallel
        named = Part(name=_GROUP, processes=recipe.scale.learner_processes, tensor_parallel=together)
    learner: Learner = part_of(assembly.resolved, "learner", "learner", named, LEARNERS, arguments, protocol=Learner)
    return learner
