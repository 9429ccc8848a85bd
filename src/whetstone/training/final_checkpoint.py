"""Final policy of a run: the weights of its last checkpoint, and the state of the method's components."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import RunDirectoryError
from whetstone.inference import MEMBERS
from whetstone.policies import Policy
from whetstone.record.checkpoint import kept_checkpoint, load_checkpoint, load_critic, run_of_checkpoint
from whetstone.record.run_directory import read_json, run_recipe


def final_agent(
    run_dir: Path, *, trust_remote_code: bool = False, member: str | None = None
) -> tuple[Policy, Mapping[str, Any]]:
    """Load the policy and the state of the method's components from a run's last checkpoint.

    Args:
        run_dir: Run directory, or one of its checkpoints.
        trust_remote_code: Whether Python code of the model folder may run; the setting in the run's recipe is ignored.
        member: Member of a run with several (`policies`); None: the first.

    Returns:
        The policy; and the states of components by name, with those of the other members under `MEMBERS`.

    Raises:
        RunDirectoryError: If the run has no intact checkpoint, or no such member.
    """
    path, base = final_checkpoint(run_dir)
    policy, state, position = load_checkpoint(path, trust_remote_code=trust_remote_code, base_path=base)
    if member is not None and member != next(iter(_policies(path)), None):
        if member not in state[MEMBERS]:
            names = ", ".join([*list(_policies(path))[:1], *sorted(state[MEMBERS])]) or "only one model"
            raise RunDirectoryError(f"{run_dir}: has no member {member}; there are: {names}")
        policy, _ = state[MEMBERS][member]()
    return policy, (position.memory or {}) | {MEMBERS: state[MEMBERS]}


def require_member(run_dir: Path, member: str | None) -> None:
    """Check that a member is named if several members of a run play seats.

    Args:
        run_dir: Run directory, or one of its checkpoints.
        member: Name of the member; None: not named.

    Raises:
        RunDirectoryError: If no member is named and the run has several; the message lists them.
    """
    path, _ = final_checkpoint(run_dir)
    names = list(_policies(path))
    others = [name for name in names[1:] if (path / MEMBERS / name).is_dir() and not _is_reward(path / MEMBERS / name)]
    if member is None and others:
        known = " or ".join(f"--member {name}" for name in [names[0], *others])
        raise RunDirectoryError(f"{run_dir}: has several models; choose one with {known}")


def _is_reward(folder: Path) -> bool:
    head = load_critic(folder)
    return head is not None and head["heads"] == ["reward"]


def _policies(checkpoint: Path) -> Mapping[str, Any]:
    """Return the `policies` of the run of a checkpoint."""
    run = run_of_checkpoint(checkpoint)
    return run_recipe(run).recipe.policies if run is not None else {}


def final_checkpoint(run_dir: Path) -> tuple[Path, Path | None]:
    """Return the last checkpoint of a run, and the model folder that its recipe names.

    For a run with several stages, the checkpoint is that of the last stage that trained a policy.

    Args:
        run_dir: Run directory, or a checkpoint, which is returned without a model folder.

    Raises:
        RunDirectoryError: If the run has no intact checkpoint.
    """
    if run_of_checkpoint(run_dir) is not None:
        return run_dir, None
    amiss: list[str] = []
    summary = read_json(run_dir / "summary.json") or {}
    folders = [run_dir / stage["folder"] for stage in summary.get("stages", ()) if "folder" in stage]
    if folders:  # of a stage that another run trained, the whole folder
        trained = [folder for folder in folders if (folder / "checkpoints").is_dir()]
        return final_checkpoint(trained[-1] if trained else folders[-1])
    path = kept_checkpoint(run_dir, report=amiss.append)
    if path is None:
        why = f": {amiss[0].partition(';')[0]}" if amiss else ""
        raise RunDirectoryError(f"{run_dir}: no checkpoint that can be read{why}")
    model = run_recipe(run_dir).recipe.policy.path if (run_dir / "recipe.yaml").is_file() else None
    return path, Path(model) if model is not None else None


def final_policy(run_dir: Path, *, trust_remote_code: bool = False, member: str | None = None) -> Policy:
    """Load the policy of a run's last checkpoint.

    Args:
        run_dir: Run directory, or one of its checkpoints.
        trust_remote_code: Whether Python code of the model folder may run.
        member: Member of a run with several (`policies`); None: the first.

    Raises:
        RunDirectoryError: If the run has no intact checkpoint, or no such member.
    """
    return final_agent(run_dir, trust_remote_code=trust_remote_code, member=member)[0]
