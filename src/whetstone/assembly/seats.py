"""Actors of the seats that the policy does not play: frozen models, and other members of `policies`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from whetstone.assembly.members import Member, frozen_engine
from whetstone.chat import Chat
from whetstone.contracts import fulfils
from whetstone.errors import PolicyError
from whetstone.inference import Sampling
from whetstone.policies import clone_trainable, load_frozen
from whetstone.recipe import RolloutSettings
from whetstone.rollout import Actor, FrozenActor, ModelActor, PolicyActor
from whetstone.rollout.optional import FrozenSeats, MemberSeats

if TYPE_CHECKING:
    from whetstone.assembly.assembly import Assembly


def member_seats(assembly: Assembly) -> Mapping[str, str]:
    """Return the name of the member that plays a seat, by role."""
    strategy, policies = assembly.strategy, assembly.resolved.recipe.policies
    if not fulfils(strategy, MemberSeats):
        return {}
    return strategy.members or {role: role for role in strategy.roles if role in policies}


def member_actors(assembly: Assembly) -> dict[str, Actor]:
    """Return the actors of the members that are open, by role; those of the first member are left out."""
    actors: dict[str, Actor] = {}
    for role, name in member_seats(assembly).items() if assembly.members else ():
        if name in assembly.members:
            member, temperature = assembly.members[name], assembly.resolved.recipe.rollout.temperature
            actor = assembly.policy_actor(member.engine, temperature=temperature, member=name)
            actors[role] = actor if member.is_trained else FrozenActor(actor)
    return actors


def frozen_actors(assembly: Assembly) -> dict[str, Actor]:
    """Return the actors of frozen seats, by role: models of `models` by name, and those of folders.

    Raises:
        RecipeError: A folder has no model, or its model has other tokens than the policy.
    """
    resolved, strategy = assembly.resolved, assembly.strategy
    named = strategy.frozen if fulfils(strategy, FrozenSeats) else None
    actors: dict[str, Actor] = {}
    for role, folder in (named or {}).items():
        if folder in assembly.models:
            actors[role] = ModelActor(assembly.models[folder], assembly.chat)
            continue
        policy, rollout = assembly.policy, resolved.recipe.rollout
        try:
            trusted = resolved.recipe.policy.trust_remote_code
            other = load_frozen(folder, trust_remote_code=trusted, device=policy.device)
        except PolicyError as error:
            raise resolved.error("rollout.strategy", f"frozen.{role}: {error}") from None
        if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise resolved.error("rollout.strategy", f"frozen.{role}: {folder} has other tokens than the policy")
        cast = partial(replace, other, model=clone_trainable(other.model, dtype=policy.dtype))
        member = Member(role, cast, engine=partial(frozen_engine, max_sequences=rollout.max_in_flight))
        sampling = sampling_of(rollout, assembly.chat, rollout.temperature)
        actors[role] = FrozenActor(PolicyActor(member.engine, sampling, assembly.chat.stop_ids))
    return actors


def sampling_of(settings: RolloutSettings, chat: Chat, temperature: float) -> Sampling:
    """Return the sampling settings of a recipe at a temperature."""
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        temperature=temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        stop_strings=(*chat.format.stops, *settings.stop_strings),
    )
