"""Actors of the seats that the policy does not play.

A seat is the role of one player in an environment with several players. Frozen models and other members of `policies`
can play a seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat
from whetstone.errors import PolicyError
from whetstone.inference import Member, Sampling, frozen_member
from whetstone.policies import Policy
from whetstone.recipe import RolloutSettings
from whetstone.rollout import Actor, FrozenActor, ModelActor
from whetstone.rollout.optional_protocols import FrozenSeats, MemberSeats

if TYPE_CHECKING:
    from whetstone.assembly.assembly import RunComponents


def member_seats(assembly: RunComponents) -> Mapping[str, str]:
    """Return the name of the member of `policies` that plays each seat: role → member."""
    strategy, policies = assembly.strategy, assembly.resolved.recipe.policies
    if not implements_protocol(strategy, MemberSeats):
        return {}
    return strategy.members or {role: role for role in strategy.roles if role in policies}


def evaluation_seats(assembly: RunComponents) -> dict[str, str]:
    """Return the seat that each trained member plays in an evaluation.

    A member with several seats plays the first one of the strategy.

    Returns:
        Member → role, the first member first; empty if only the first member plays.
    """
    policies = assembly.resolved.recipe.policies
    strategy = assembly.strategy if len(policies) > 1 else None
    if not implements_protocol(strategy, MemberSeats):
        return {}
    played = member_seats(assembly)
    if not set(played.values()) - {assembly.member}:
        return {}
    frozen = (strategy.frozen if implements_protocol(strategy, FrozenSeats) else None) or {}
    names = {role: played.get(role, assembly.member) for role in strategy.roles if role not in frozen}
    seats = {name: role for role, name in reversed(names.items()) if policies[name].trained}
    return {name: seats[name] for name in policies if name in seats}


def build_member_actors(assembly: RunComponents) -> dict[str, Actor]:
    """Build the actors of the members that are open, except the first member: role → actor."""
    actors: dict[str, Actor] = {}
    for role, name in member_seats(assembly).items() if assembly.members else ():
        if name in assembly.members:
            member, temperature = assembly.members[name], assembly.resolved.recipe.rollout.temperature
            actor = assembly.policy_actor(member.engine, temperature=temperature, member=name)
            actors[role] = actor if member.is_trained else FrozenActor(actor)
    return actors


def build_frozen_actors(assembly: RunComponents) -> dict[str, Actor]:
    """Build the actors of frozen seats, from `models` or from model folders: role → actor.

    Raises:
        RecipeError: If a folder has no model, or its model has another vocabulary than the policy.
    """
    resolved, strategy = assembly.resolved, assembly.strategy
    named = strategy.frozen if implements_protocol(strategy, FrozenSeats) else None
    actors: dict[str, Actor] = {}
    for role, folder in (named or {}).items():
        if folder in assembly.models:
            actors[role] = ModelActor(assembly.models[folder], assembly.chat)
            continue
        member = open_frozen_member(assembly, role, folder)
        try:
            is_same = shares_vocabulary(assembly, member.policy)
        except PolicyError as error:
            raise resolved.error("rollout.strategy", f"frozen.{role}: {error}") from None
        if not is_same:
            raise resolved.error(
                "rollout.strategy",
                f"frozen.{role}: {folder} has another vocabulary than the policy; use a model with the same tokenizer",
            )
        actors[role] = FrozenActor(
            assembly.policy_actor(member.engine, temperature=resolved.recipe.rollout.temperature, member="")
        )
    return actors


def open_frozen_member(assembly: RunComponents, name: str, folder: str | Path) -> Member:
    """Create the member of a frozen model that plays a seat, on the device and in the precision of the policy.

    Args:
        assembly: Components of the run.
        name: Name of the member in messages.
        folder: Model folder, such as a checkpoint.
    """
    recipe, policy = assembly.resolved.recipe, assembly.policy
    return frozen_member(
        name,
        folder,
        trust_remote_code=recipe.policy.trust_remote_code,
        device=policy.device,
        dtype=policy.dtype,
        max_sequences=recipe.rollout.max_episodes,
    )


def shares_vocabulary(assembly: RunComponents, policy: Policy) -> bool:
    """Return whether a policy has the tokens of the policy of the run, so that it can read the same contexts.

    Args:
        assembly: Components of the run.
        policy: Other policy.
    """
    return bool(policy.tokenizer.get_vocab() == assembly.policy.tokenizer.get_vocab())


def build_sampling(settings: RolloutSettings, chat: Chat, temperature: float) -> Sampling:
    """Return the sampling settings of a recipe at a temperature.

    Args:
        settings: Rollout settings, such as `top_p` and `max_new_tokens`.
        chat: Chat of the policy, which provides the stop tokens.
        temperature: Sampling temperature; 0 is greedy decoding.
    """
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        temperature=temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        stop_strings=(*chat.format.stops, *settings.stop_strings),
    )
