"""Which weights does a name on the hub mean in this run? Those it meant when the run began, by their commit."""

from __future__ import annotations

from pathlib import Path

from whetstone.policies import found_model, is_hub_name
from whetstone.recipe import Resolved
from whetstone.record import run_recipe


def pinned(resolved: Resolved, run_dir: Path, *, resume: bool) -> Resolved:
    """The recipe with the commit of its policy written into `policy.revision`; as it was where none comes from the hub.

    Args:
        resume: Whether the run in `run_dir` is gone on with: where its recipe has the commit, that one stands.

    Raises:
        PolicyError: The hub has no such model, or cannot be reached.
    """
    policy = resolved.recipe.policy
    if policy.path is None or not is_hub_name(policy.path):
        return resolved
    if resume and policy.revision is None and (run_dir / "recipe.yaml").is_file():
        began = run_recipe(run_dir).recipe.policy
        if began.path == policy.path and began.revision is not None:
            return resolved.with_changes({"policy.revision": began.revision})
    folder = found_model(policy.path, revision=policy.revision, trust_remote_code=policy.trust_remote_code)
    return resolved.with_changes({"policy.revision": folder.name})
