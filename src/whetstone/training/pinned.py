"""Which weights does a name on the hub mean in this run? Those it meant when the run began, by their commit."""

from __future__ import annotations

from pathlib import Path

from whetstone.policies import found_model, is_hub_name
from whetstone.recipe import Resolved
from whetstone.record import run_recipe


def pinned(resolved: Resolved, run_dir: Path, *, resume: bool) -> Resolved:
    """The recipe with commits written down: the policy's in `policy.revision`, those of teachers, of frozen models and
    of those in other seats behind their names (`owner/model@commit`); as it was where none comes from the hub.

    Args:
        resume: Whether the run in `run_dir` is gone on with: where its recipe has a commit, that one stands.

    Raises:
        PolicyError: The hub has no such model, or cannot be reached.
    """
    began = run_recipe(run_dir) if resume and (run_dir / "recipe.yaml").is_file() else None
    known = {_unpinned(name): name for _, name in _others(began)} if began is not None else {}
    trusted = resolved.recipe.policy.trust_remote_code
    changes = {
        key: known.get(name) or f"{name}@{found_model(name, trust_remote_code=trusted).name}"
        for key, name in _others(resolved)
        if is_hub_name(name) and "@" not in name
    }
    policy = resolved.recipe.policy
    if policy.path is not None and is_hub_name(policy.path):
        before = began.recipe.policy if began is not None else None
        if before is not None and policy.revision is None and before.path == policy.path and before.revision:
            changes["policy.revision"] = before.revision
        else:
            folder = found_model(policy.path, revision=policy.revision, trust_remote_code=trusted)
            changes["policy.revision"] = folder.name
    return resolved.with_changes(changes) if changes else resolved


def _others(resolved: Resolved) -> list[tuple[str, str]]:
    """(key, model) of each model beside the policy."""
    recipe = resolved.recipe
    seats = recipe.rollout.strategy.options.get("frozen")
    found = [(f"rollout.strategy.frozen.{role}", str(name)) for role, name in dict(seats or {}).items()]
    found += [(f"models.{name}.path", each.path) for name, each in recipe.models.items() if each.path is not None]
    taught = recipe.teacher.path if recipe.teacher is not None else None
    return [("teacher.path", taught), *found] if taught is not None else found


def _unpinned(name: str) -> str:
    return name.partition("@")[0]
