"""Resolution of `start_from`: the checkpoint of another run with which a new run starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.errors import RunDirectoryError
from whetstone.inference import MEMBERS, MemberState
from whetstone.policies import Policy
from whetstone.recipe import Resolved
from whetstone.record.checkpoint import (
    checkpoint_path,
    checkpoints_in,
    find_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    run_of_checkpoint,
)
from whetstone.record.run_directory import run_recipe


def resolve_start(resolved: Resolved) -> Resolved:
    """Return a recipe whose initial policy is the checkpoint that `start_from` names.

    The path and the step of the checkpoint are written to `start_from`. Learning rates keep the values of the recipe,
    including defaults that depend on its former policy. A recipe without `start_from` is returned unchanged.

    Raises:
        RecipeError: The run that `start_from` names has no such checkpoint.
    """
    start = resolved.recipe.start_from
    if start is None:
        return resolved
    folder = Path(start.path)
    if start.step is not None and folder.name == checkpoint_path(folder, start.step).name:
        return resolved  # the recipe of a run, which has its checkpoint as its policy
    checkpoint: Path | None = folder
    run = run_of_checkpoint(folder)
    if run is not None and not folder.is_dir():
        try:
            find_checkpoint(run, folder.name)
        except RunDirectoryError as error:
            raise resolved.error("start_from", str(error)) from None
    if not (folder / "trainer").is_dir():
        chain = [path for path in stage_folders(folder) if checkpoints_in(path)]
        folder = chain[-1] if chain else folder
        checkpoint = latest_checkpoint(folder) if start.step is None else checkpoint_path(folder, start.step)
        if checkpoint is None or not checkpoint.is_dir():
            numbers = [str(int(path.name.removeprefix("step-"))) for path in checkpoints_in(folder)]
            known = f"existing steps: {', '.join(numbers)}" if numbers else "it is not a run with checkpoints"
            wanted = "" if start.step is None else f" of step {start.step}"
            raise resolved.error("start_from", f"{folder} has no checkpoint{wanted}; {known}")
    assert checkpoint is not None
    path = str(checkpoint.resolve())
    rates = {f"{kind}.learning_rate": stage.learning_rate for kind, stage in resolved.recipe.own_stages.items()}
    policy = {"policy.path": path, "policy.tiny": None, "policy.revision": None}
    place = {"path": path, "step": int(checkpoint.name.removeprefix("step-")), "what": start.what}
    return resolved.with_changes({**policy, **rates, "start_from": place})


def stage_folders(run_dir: Path) -> list[Path]:
    """Return the run directories of the stages of a multi-stage run, in order; none for a run of one stage.

    Stages with a name instead of a number are ordered by the time of their start.
    """
    folders = [path.parent for path in (run_dir / "stages").glob("*/recipe.yaml")]
    return sorted(folders, key=lambda path: (_number(path.name), (path / "recipe.yaml").stat().st_mtime_ns))


def _number(name: str) -> int:
    prefix = name.partition("-")[0]
    return int(prefix) if prefix.isdecimal() else 0


def load_start(resolved: Resolved, *, log: Callable[[str], None]) -> tuple[Policy | None, dict[str, Any] | None]:
    """Load policy and learner state of the checkpoint that `start_from` names.

    The learner state has the optimizer state of the checkpoint and the schedule of a new stage.

    Args:
        resolved: A recipe with `start_from`, as returned by `resolve_start`.
        log: Receives a line that names the checkpoint.

    Returns:
        (policy, state of the learner); both are None if `start_from.what` is `weights`.

    Raises:
        RecipeError: The checkpoint is of another kind of stage, or of another optimizer, than the first stage.
    """
    start = resolved.recipe.start_from
    assert start is not None
    log(f"start: {start.what} of {start.path}")
    if start.what == "weights":
        return None, None
    checkpoint = Path(start.path)
    policy, state, position = load_checkpoint(checkpoint, trust_remote_code=resolved.recipe.policy.trust_remote_code)
    stage, settings = next(iter(resolved.recipe.own_stages.items()))
    before = run_recipe(checkpoint.parent.parent).recipe.own_stages.get(position.stage)
    optimizer = before.optimizer if before is not None else None
    if (position.stage, optimizer) != (stage, settings.optimizer):
        problem = f"the checkpoint is of stage {position.stage} with optimizer {optimizer}"
        message = f"all: {problem}, but the first stage is {stage} with {settings.optimizer}; use what: weights"
        raise resolved.error("start_from.what", message)
    return policy, _restart_schedule(state)


def _restart_schedule(state: dict[str, Any]) -> dict[str, Any]:
    """Return a learner state with the step counter reset and the reference model removed, recursively for members."""
    own = {key: value for key, value in state.items() if key != "reference"}
    members = {name: partial(_restart_member, each) for name, each in state.get(MEMBERS, {}).items()}
    return own | ({"done": 0, "share": 0.0} if "done" in own else {}) | {MEMBERS: members}


def _restart_member(state: MemberState, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
    policy, learned = state(base_path=base_path)
    return policy, _restart_schedule(learned)
