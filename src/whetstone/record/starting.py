"""Resolution of `start_from`: the checkpoint of another run with which a new run starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.inference import MEMBERS, MemberState
from whetstone.policies import Policy
from whetstone.recipe import Resolved
from whetstone.record.checkpoint import checkpoint_path, checkpoints_in, latest_checkpoint, load_checkpoint
from whetstone.record.run_directory import run_recipe


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
        chain = [path for path in stage_folders(folder) if checkpoints_in(path)]
        folder = chain[-1] if chain else folder
        checkpoint = latest_checkpoint(folder) if start.step is None else checkpoint_path(folder, start.step)
        if checkpoint is None or not checkpoint.is_dir():
            numbers = [str(int(path.name.removeprefix("step-"))) for path in checkpoints_in(folder)]
            known = f"it has {', '.join(numbers)}" if numbers else "it has none"
            wanted = "" if start.step is None else f" {start.step}"
            raise resolved.error("start_from", f"{folder} has no checkpoint{wanted}; {known}")
    assert checkpoint is not None
    path = str(checkpoint.resolve())
    rates = {f"{kind}.learning_rate": stage.learning_rate for kind, stage in resolved.recipe.own_stages.items()}
    policy = {"policy.path": path, "policy.tiny": None, "policy.revision": None}
    place = {"path": path, "step": int(checkpoint.name.removeprefix("step-")), "what": start.what}
    return resolved.with_changes({**policy, **rates, "start_from": place})


def stage_folders(run_dir: Path) -> list[Path]:
    """Return the run directories of the stages of a chain, in order; of another run, none.

    Stages that have a name instead of a number are ordered by their start.
    """
    folders = [path.parent for path in (run_dir / "stages").glob("*/recipe.yaml")]
    return sorted(folders, key=lambda path: (_number(path.name), (path / "recipe.yaml").stat().st_mtime_ns))


def _number(name: str) -> int:
    prefix = name.partition("-")[0]
    return int(prefix) if prefix.isdecimal() else 0


def load_start(resolved: Resolved, *, log: Callable[[str], None]) -> tuple[Policy | None, dict[str, Any] | None]:
    """Return policy and learner state with which a run starts if `start_from.what` is `all`.

    Otherwise both are None.

    The state has the optimizer of the checkpoint and the schedule of a new stage.

    Args:
        resolved: A recipe that `resolve_start` returned, with `start_from`.
        log: Receives a line that names the checkpoint.

    Raises:
        RecipeError: The checkpoint is of a stage or optimizer other than the first stage's.
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
        problem = f"the checkpoint is of {position.stage} with {optimizer}"
        message = f"all: {problem}, the first stage {stage} has {settings.optimizer}; use what: weights"
        raise resolved.error("start_from.what", message)
    return policy, _restart_schedule(state)


def _restart_schedule(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a learner at the start of a stage; that of a frozen member stays empty."""
    own = {key: value for key, value in state.items() if key != "reference"}
    members = {name: partial(_restart_member, each) for name, each in state.get(MEMBERS, {}).items()}
    return own | ({"done": 0, "share": 0.0} if "done" in own else {}) | {MEMBERS: members}


def _restart_member(state: MemberState, *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
    policy, learned = state(base_path=base_path)
    return policy, _restart_schedule(learned)
