"""Recipes of the members of `policies`, and checks of the members."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whetstone.recipe import Resolved
from whetstone.record.checkpoint import MEMBERS


def member_recipes(resolved: Resolved) -> dict[str, Resolved]:
    """Return the recipe of each member of `policies` by name; without `policies`, the recipe itself under "".

    Raises:
        RecipeError: Same as for `recipe_of_member`.
    """
    names = list(resolved.recipe.policies)
    return {name: recipe_of_member(resolved, name) for name in names} if len(names) > 1 else {"": resolved}


def recipe_of_member(resolved: Resolved, name: str) -> Resolved:
    """Return the recipe of a member of `policies`: its settings as `policy`, and its keys of `reinforcement`.

    Raises:
        RecipeError: `like` names no member, or a key is unknown.
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
        keys = {**recipe_of_member(resolved, settings.like).recipe.policy.model_dump(exclude_defaults=True), **keys}
    policy = {key: value for key, value in keys.items() if key not in ("like", "trained", "reinforcement")}
    # of an earlier stage, whose checkpoint has this member as well
    stored = Path(policy["path"]) / MEMBERS / name if policy.get("path") is not None else None
    if stored is not None and stored.is_dir():
        policy["path"] = str(stored)
    stage = {f"reinforcement.{key}": value for key, value in settings.reinforcement.items()}
    return resolved.with_changes({"policies": None, "policy": policy, **stage})


def check_members(resolved: Resolved, seats: Mapping[str, str]) -> None:
    """Check the members of `policies`.

    Args:
        seats: Name of the member in each seat that names one.

    Raises:
        RecipeError: A seat names no member, no seat names a member, or the engine cannot sample several members.
    """
    recipe, names = resolved.recipe, list(resolved.recipe.policies)
    for role, name in seats.items():
        if name not in names:
            known = f"policies has: {', '.join(names)}" if names else "the recipe has no policies"
            raise resolved.error(f"rollout.strategy.members.{role}", f'no member is named "{name}"; {known}')
    for name in names[1:]:
        if name not in seats.values():
            raise resolved.error(f"policies.{name}", "has no effect: it plays no seat (rollout.strategy.members)")
        recipe_of_member(resolved, name)
    trained = [name for name in names if recipe.policies[name].trained]
    if names and names[0] not in trained:
        raise resolved.error(f"policies.{names[0]}.trained", "the first member is trained; list a frozen one after it")
    if len(trained) < 2:
        return
    both = f"{' and '.join(trained)} are trained"
    if "address" in recipe.engine.options:
        server = recipe.engine.options["address"]
        raise resolved.error("engine.address", f"{both}, and the server at {server} loads the weights of one model")
    if recipe.scale.on_ray:
        raise resolved.error("scale.backend", f"{both}, which requires one process; remove scale")
    if recipe.scale.learner_processes > 1:
        raise resolved.error("scale.learner_processes", f"{both}, each by one process; use learner_processes: 1")
