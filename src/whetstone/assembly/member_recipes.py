"""Recipes of the members of `policies`, and checks that each member has exactly one role.

A member is one of several policies of a run; the first is the policy in training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from whetstone.inference import MEMBERS
from whetstone.recipe import Resolved


def member_recipes(resolved: Resolved) -> dict[str, Resolved]:
    """Return the recipe of each member of `policies`, by name.

    A recipe with fewer than two members returns itself under the name "".

    Raises:
        RecipeError: If the settings of a member are wrong; see `member_recipe`.
    """
    names = list(resolved.recipe.policies)
    return {name: member_recipe(resolved, name) for name in names} if len(names) > 1 else {"": resolved}


def member_recipe(resolved: Resolved, name: str) -> Resolved:
    """Return the recipe with which a member of `policies` is built and trained.

    The settings of the member become its `policy` section; its learning rate, optimizer and other training keys replace
    those of `reinforcement`.

    Args:
        resolved: Recipe with `policies`.
        name: Name of the member.

    Raises:
        RecipeError: If the member's `like` names no other member, or a key is unknown.
    """
    policies = resolved.recipe.policies
    if name == next(iter(policies), name):
        return resolved.with_changes({"policies": None})
    settings, keys = policies[name], policies[name].model_dump(exclude_defaults=True)
    if settings.like is not None:
        if settings.like not in policies or settings.like == name:
            known = ", ".join(other for other in policies if other != name)
            raise resolved.error(
                f"policies.{name}.like", f'no other member is named "{settings.like}"; others: {known}'
            )
        keys = {**member_recipe(resolved, settings.like).recipe.policy.model_dump(exclude_defaults=True), **keys}
    policy = {key: value for key, value in keys.items() if key not in ("like", "trained", "reinforcement")}
    # of an earlier stage, whose checkpoint has this member as well
    stored = Path(policy["path"]) / MEMBERS / name if policy.get("path") is not None else None
    if stored is not None and stored.is_dir():
        policy["path"] = str(stored)
    stage = {f"reinforcement.{key}": value for key, value in settings.reinforcement.items()}
    return resolved.with_changes({"policies": None, "policy": policy, **stage})


def check_members(resolved: Resolved, seats: Mapping[str, str], rewards: Collection[str]) -> None:
    """Check that each member of `policies` plays one seat or is one reward.

    Args:
        resolved: Recipe.
        seats: Name of the member that plays each seat, by role.
        rewards: Names of the members that are learned rewards.

    Raises:
        RecipeError: If a seat names no member, nothing names a member, or the engine or the scale settings do not
            support several trained members.
    """
    recipe, names = resolved.recipe, list(resolved.recipe.policies)
    for role, name in seats.items():
        if name not in names:
            known = f"policies has: {', '.join(names)}" if names else "the recipe has no policies"
            raise resolved.error(f"rollout.strategy.members.{role}", f'no member is named "{name}"; {known}')
    for name in names[1:]:
        uses = (name in seats.values()) + (name in rewards)
        if uses != 1:
            problem = "plays a seat and is a reward; name two members"
            if not uses:
                problem = "has no effect: it plays no seat (rollout.strategy.members), and no reward names it (member)"
            raise resolved.error(f"policies.{name}", problem)
        member_recipe(resolved, name)
    trained = [name for name in names if recipe.policies[name].trained]
    if names and names[0] not in trained:
        raise resolved.error(f"policies.{names[0]}.trained", "the first member is trained; list a frozen one after it")
    if rewards and recipe.scale.on_ray:
        problem = f"the workers that compute rewards do not have {' and '.join(rewards)} of policies; remove scale"
        raise resolved.error("scale.backend", problem)
    if len(trained) < 2:
        return
    both = f"{' and '.join(trained)} are trained"
    if "address" in recipe.engine.options and len(set(trained) - set(rewards)) > 1:
        server = recipe.engine.options["address"]
        raise resolved.error("engine.address", f"{both}, and the server at {server} loads the weights of one model")
    if recipe.scale.on_ray:
        raise resolved.error("scale.backend", f"{both}, which requires one process; remove scale")
    if recipe.scale.learner_processes > 1:
        raise resolved.error("scale.learner_processes", f"{both}, each by one process; use learner_processes: 1")
