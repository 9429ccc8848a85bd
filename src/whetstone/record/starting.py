"""Resolution of `start_from`: the checkpoint of another run with which a new run starts."""

from __future__ import annotations

from pathlib import Path

from whetstone.recipe import Resolved
from whetstone.record.checkpoint import checkpoint_path, checkpoints_in, latest_checkpoint


def resolve_start(resolved: Resolved) -> Resolved:
    """Return a recipe whose policy is the checkpoint that `start_from` names.

    The checkpoint is stored in `start_from.path` and `start_from.step`. Learning rates that were not set stay those of
    the recipe's own policy.

    Raises:
        RecipeError: There is no such checkpoint.
    """
    start = resolved.recipe.start_from
    if start is None:
        return resolved
    folder = Path(start.path)
    if start.step is not None and folder.name == checkpoint_path(folder, start.step).name:
        return resolved  # the recipe of a run, which has its checkpoint as its policy
    checkpoint: Path | None = folder
    if not (folder / "trainer").is_dir():
        checkpoint = latest_checkpoint(folder) if start.step is None else checkpoint_path(folder, start.step)
        if checkpoint is None or not checkpoint.is_dir():
            numbers = [str(int(path.name.removeprefix("step-"))) for path in checkpoints_in(folder)]
            known = f"it has {', '.join(numbers)}" if numbers else "it has none"
            asked = "" if start.step is None else f" {start.step}"
            raise resolved.error("start_from", f"{folder} has no checkpoint{asked}; {known}")
    assert checkpoint is not None
    path = str(checkpoint.resolve())
    rates = {f"{kind}.learning_rate": stage.learning_rate for kind, stage in resolved.recipe.own_stages.items()}
    policy = {"policy.path": path, "policy.tiny": None, "policy.revision": None}
    place = {"path": path, "step": int(checkpoint.name.removeprefix("step-")), "what": start.what}
    return resolved.with_changes({**policy, **rates, "start_from": place})
