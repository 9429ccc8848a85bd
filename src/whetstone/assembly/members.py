"""Construction of a run's other models: members of `policies`, reference, teacher.

Note:
    The reference is the policy with which reinforcement starts, not that of a checkpoint within the stage.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from whetstone.assembly.instantiate import build_component
from whetstone.assembly.member_recipes import member_recipe
from whetstone.assembly.placement import AuxiliaryDevices, auxiliary_devices
from whetstone.assembly.seats import member_seats
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import Engine, Member, load_member_states
from whetstone.learning.implicit_prm import ProcessModel
from whetstone.learning.learner_factory import LEARNERS
from whetstone.learning.member_learner import MemberLearner
from whetstone.learning.model_trainer import PROCESS
from whetstone.learning.noop_learner import NoOpLearner
from whetstone.learning.protocol import Learner
from whetstone.learning.reward_learner import RewardLearner
from whetstone.policies import (
    Policy,
    build_critic,
    clone_trainable,
    contains_adapters,
    freeze_parameters,
    has_adapters,
    load_frozen,
    load_policy,
    move_policy,
    resolve_model_folder,
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
from whetstone.record.checkpoint import load_critic
from whetstone.rollout import PolicyActor

if TYPE_CHECKING:
    from whetstone.assembly.assembly import RunComponents

_GROUP = "whetstone.scaling.distributed_learner.learner_group:group_learner"
"""Learner that runs in several processes. It is named as text because its package depends on this one."""


def open_members(
    assembly: RunComponents, warmed_up: Path | None, *, staging: Path | None = None, is_start: bool = False
) -> dict[str, Member]:
    """Build the members of `policies` that play a seat, except the first.

    Args:
        assembly: Components of the run.
        warmed_up: Checkpoint with which reinforcement starts; None: the untrained policy.
        staging: Folder of checkpoints, for the shards of learner processes; None: a temporary folder.
        is_start: Whether the policy has the weights with which reinforcement starts.
    """
    played = member_seats(assembly).values()
    names = [name for name in list(assembly.resolved.recipe.policies)[1:] if name in played]
    return {name: _open_member(assembly, name, warmed_up, staging, is_start) for name in names}


def build_evaluation_actor(
    assembly: RunComponents, engine: Engine, name: str, *, temperature: float
) -> PolicyActor | None:
    """Build the actor with which a member of `policies` plays its seat in an evaluation.

    Before reinforcement the members are not built yet. A member that starts as a copy of the first one is then sampled
    from the first one's engine, and other members have no actor (None).

    Args:
        assembly: Components of the run.
        engine: Engine of the first member.
        name: Name of the member.
        temperature: Sampling temperature; 0 is greedy decoding.
    """
    if name in assembly.members:
        engine = assembly.members[name].engine
    elif name != assembly.member and not _begins_as_first(assembly, name):
        return None
    return assembly.policy_actor(engine, temperature=temperature, member=name)


def _begins_as_first(assembly: RunComponents, name: str) -> bool:
    """Return whether a member starts with a copy of the first member's weights."""
    recipe = assembly.resolved.recipe
    first = recipe.policies[name].like == next(iter(recipe.policies))
    return first and member_recipe(assembly.resolved, name).recipe.policy.path == recipe.policy.path


def _open_member(
    assembly: RunComponents, name: str, warmed_up: Path | None, staging: Path | None, is_start: bool
) -> Member:
    recipe, resolved = assembly.resolved.recipe, member_recipe(assembly.resolved, name)
    settings, first = recipe.policies[name], assembly.policy
    begins_as_first = _begins_as_first(assembly, name)
    policy = None
    if begins_as_first:
        policy = replace(first, model=copy.deepcopy(first.model), critic=copy.deepcopy(first.critic))
    own = assembly.restart(resolved=resolved, _policy=policy, member=name)
    _check_tokens(assembly, name, own.policy)
    stage = resolved.recipe.reinforcement

    def learner(_: Policy) -> Learner:
        assert stage is not None
        return learner_for(own, stage, warmed_up if begins_as_first else None, staging=staging, is_start=is_start)

    return Member(
        name,
        lambda: own.policy,
        path=_folder_of(resolved),
        chat=lambda _: own.chat,
        engine=lambda _: own.build_engine(),
        learner=learner if settings.trained else None,
        is_stored=settings.trained or begins_as_first,
    )


def reward_member(assembly: RunComponents, name: str) -> Member:
    """Build the member of `policies` that is a learned reward model.

    The reward head is loaded from the member's folder if it has one, otherwise it is new. State in the checkpoint from
    which the run resumes is loaded on top.

    Args:
        assembly: Components of the run.
        name: Name of the member.

    Raises:
        RecipeError: If no member after the first has this name.
    """
    others = list(assembly.resolved.recipe.policies)[1:]
    if name not in others:
        raise RecipeError(f'no member of policies after the first is named "{name}"; others: {", ".join(others)}')
    if name in assembly.members:
        return assembly.members[name]
    resolved = member_recipe(assembly.resolved, name)
    own, settings = assembly.restart(resolved=resolved, say=lambda line: None), resolved.recipe.policy
    folder = _folder_of(resolved)

    def load() -> Policy:
        policy = own.loaded[0]
        _check_tokens(assembly, name, policy)
        critic = build_critic(policy.model, ("reward",), detached=False)
        if folder is not None and (head := load_critic(folder)) is not None and head["heads"] == ["reward"]:
            critic.load_state_dict(head["state"])
        try:
            freeze_parameters(policy, settings.freeze)
        except PolicyError as error:
            raise assembly.resolved.error(f"policies.{name}.freeze", str(error)) from None
        return replace(policy, critic=critic)

    member = assembly.members[name] = Member(
        name,
        load,
        path=folder,
        learner=lambda policy: RewardLearner(policy, resolved.recipe.reinforcement or OptimizerSettings()),
        is_trained=assembly.resolved.recipe.policies[name].trained,
        is_stored=True,
    )
    load_member_states({name: member}, assembly.memory)
    return member


def _check_tokens(assembly: RunComponents, name: str, policy: Policy) -> None:
    """Check that a member has the vocabulary of the first member and at least its context length.

    Raises:
        RecipeError: If the member differs.
    """
    first = assembly.loaded[0]
    if policy.tokenizer.get_vocab() != first.tokenizer.get_vocab():
        raise assembly.resolved.error(
            f"policies.{name}", "has another vocabulary than the first member; use a model with the same tokenizer"
        )
    if policy.context_length < first.context_length:
        lengths = f"reads {policy.context_length} tokens, the first member {first.context_length}"
        raise assembly.resolved.error(f"policies.{name}", f"{lengths}; use a model with the same context length")


def _folder_of(resolved: Resolved) -> Path | None:
    path = resolved.recipe.policy.path
    return Path(path) if path is not None else None


def build_stage_learner(
    assembly: RunComponents,
    settings: OptimizerSettings,
    warmed_up: Path | None,
    *,
    staging: Path | None = None,
    is_start: bool = False,
) -> Learner:
    """Build the learner of a stage.

    In stages that sample and train, the learner also trains the other trained members of `policies`.

    Args:
        assembly: Components of the run.
        settings: Settings of the stage.
        warmed_up: Checkpoint with which reinforcement starts; None: the untrained policy.
        staging: Folder of checkpoints, for the shards of learner processes; None: a temporary folder.
        is_start: Whether the policy has the weights with which reinforcement starts.
    """
    if isinstance(settings, SupervisedSettings | PretrainingSettings):
        return build_imitator(assembly, settings, staging=staging)
    if isinstance(settings, SamplingSettings):
        unchanged = NoOpLearner(assembly.policy)
        return MemberLearner(assembly.member, unchanged, assembly.members) if assembly.members else unchanged
    learning = assembly.resolved.recipe.reinforcement
    assert learning is not None
    first = learner_for(assembly, learning, warmed_up, staging=staging, is_start=is_start)
    if isinstance(settings, PreferenceSettings | OfflineSettings):
        return first
    assembly.members |= open_members(assembly, warmed_up, staging=staging, is_start=is_start)
    return MemberLearner(assembly.member, first, assembly.members) if assembly.members else first


def learner_for(
    assembly: RunComponents,
    settings: ReinforcementSettings,
    warmed_up: Path | None,
    *,
    staging: Path | None = None,
    is_start: bool = False,
) -> Learner:
    """Build a learner for reinforcement, with the auxiliary models that the recipe reads.

    The auxiliary models are reference, teacher and process reward model.

    Args:
        assembly: Components of the policy to train.
        settings: Settings of the stage.
        warmed_up: Checkpoint with which reinforcement starts; None: the untrained policy.
        staging: Folder of checkpoints, for the shards of learner processes; None: a temporary folder.
        is_start: Whether the policy has the weights with which reinforcement starts; the reference is then a copy of
            it.
    """
    members = _members_of_learner(assembly, settings, warmed_up, is_start=is_start)
    return _build_learner(assembly, settings, staging=staging, spec=assembly.learning_spec(settings), members=members)


def _members_of_learner(
    assembly: RunComponents, settings: ReinforcementSettings, warmed_up: Path | None, *, is_start: bool
) -> dict[str, Member]:
    """Build reference, teacher and process reward model, each if the recipe reads it."""
    recipe, policy = assembly.resolved.recipe, assembly.policy
    places = auxiliary_devices(assembly.resolved, settings, policy.device)
    reference = _reference(assembly, settings, places, warmed_up, is_start=is_start)
    members = {} if reference is None else {"reference": reference}
    teacher, process = recipe.teacher, recipe.implicit_prm
    if teacher is not None:
        members["teacher"] = Member("teacher", partial(_teacher, assembly, places), device=places.computed["teacher"])
    if process is not None:
        members[PROCESS] = Member(
            PROCESS,
            lambda: replace(policy, model=clone_trainable(policy.model), critic=None),
            path=_folder_of(assembly.resolved),
            learner=lambda own: ProcessModel(own, process, settings),
            is_stored=True,
        )
    return members


def _teacher(assembly: RunComponents, places: AuxiliaryDevices) -> Policy:
    """Load the teacher; without `teacher.path`, the policy in training is its own teacher."""
    recipe = assembly.resolved.recipe
    assert recipe.teacher is not None
    if recipe.teacher.path is None:
        return assembly.policy
    options: dict[str, Any] = {
        "trust_remote_code": recipe.policy.trust_remote_code,
        "device": places.storage_device("teacher"),
    }
    if "teacher" not in places.offloaded:
        return load_frozen(recipe.teacher.path, **options)
    policy = load_policy(recipe.teacher.path, **options)  # moves between devices, so it is not shared
    policy.model.requires_grad_(False)
    return policy


def _reference(
    assembly: RunComponents,
    settings: ReinforcementSettings,
    places: AuxiliaryDevices,
    warmed_up: Path | None,
    *,
    is_start: bool,
) -> Member | None:
    """Build the reference: the policy with which reinforcement starts.

    None if nothing reads the reference, or if the policy without its adapters is the reference.
    """
    policy, resolved = assembly.policy, assembly.resolved
    if not (settings.holds_on or assembly.reads_columns("reference_logprobs", "reference_sums")):
        return None
    if has_new_adapters(resolved, policy) and warmed_up is None:
        return None

    def load() -> Policy:
        # a checkpoint of adapters has its base model in float32
        if is_start and (not has_adapters(policy.model) or policy.dtype == torch.float32):
            began = Policy(copy.deepcopy(policy.model), policy.tokenizer)
        elif warmed_up is not None:
            began = load_policy(warmed_up, trust_remote_code=resolved.recipe.policy.trust_remote_code)
        else:
            began = assembly.restart(say=lambda line: None).policy
        began.model.requires_grad_(False)
        return move_policy(began, places.storage_device("reference"))

    return Member("reference", load, device=places.computed["reference"])


def has_new_adapters(resolved: Resolved, policy: Policy) -> bool:
    """Return whether the adapters of the policy were added by this recipe.

    The policy without its adapters is then the model that the stage started from.
    """
    path = resolved.recipe.policy.path
    if not has_adapters(policy.model) or path is None:
        return has_adapters(policy.model)
    trusted = resolved.recipe.policy.trust_remote_code
    return not contains_adapters(
        resolve_model_folder(path, revision=resolved.recipe.policy.revision, trust_remote_code=trusted)
    )


def build_imitator(assembly: RunComponents, settings: OptimizerSettings, *, staging: Path | None = None) -> Learner:
    """Build a learner for imitation, which trains on demonstrations or texts and not on groups.

    Args:
        assembly: Components of the run.
        settings: Settings of the stage.
        staging: Folder of checkpoints, for the shards of learner processes; None: a temporary folder.
    """
    return _build_learner(assembly, settings, staging=staging)


def _build_learner(assembly: RunComponents, settings: OptimizerSettings, **arguments: Any) -> Learner:
    arguments |= {"policy": assembly.policy, "settings": settings}
    recipe = assembly.resolved.recipe
    named = recipe.learner
    if recipe.scale.learner_processes > 1:
        together = recipe.scale.learner_tensor_parallel
        named = Part(name=_GROUP, processes=recipe.scale.learner_processes, tensor_parallel=together)
    learner: Learner = build_component(
        assembly.resolved, "learner", "learner", named, LEARNERS, arguments, protocol=Learner
    )
    return learner
