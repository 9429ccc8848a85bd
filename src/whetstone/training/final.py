"""Which weights did a run end with? Those of its last checkpoint, and what the method remembered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import RunDirectoryError
from whetstone.policies import Policy
from whetstone.record.checkpoint import kept_checkpoint, load_checkpoint, run_of_checkpoint
from whetstone.record.run_directory import read_json, run_recipe


def final_agent(run_dir: Path, *, trust_remote_code: bool = False) -> tuple[Policy, Mapping[str, Any] | None]:
    """(the policy, what parts of the method remember) of a run's last checkpoint.

    Args:
        run_dir: The run, or one of its checkpoints.
        trust_remote_code: As of `load_policy`; what the run's own recipe says of it is not asked.

    Raises:
        RunDirectoryError: It has none, or none that is sound.
    """
    if run_of_checkpoint(run_dir) is not None:
        policy, _, position = load_checkpoint(run_dir, trust_remote_code=trust_remote_code)
        return policy, position.memory
    amiss: list[str] = []
    made = read_json(run_dir / "summary.json") or {}
    folders = [run_dir / stage["folder"] for stage in made.get("stages", ()) if "folder" in stage]
    if folders:  # of a stage that another run trained, the whole folder
        trained = [folder for folder in folders if (folder / "checkpoints").is_dir()]
        return final_agent(trained[-1] if trained else folders[-1], trust_remote_code=trust_remote_code)
    path = kept_checkpoint(run_dir, report=amiss.append)
    if path is None:
        why = f": {amiss[0].partition(';')[0]}" if amiss else ""
        raise RunDirectoryError(f"{run_dir}: no checkpoint that can be read{why}")
    model = run_recipe(run_dir).recipe.policy.path if (run_dir / "recipe.yaml").is_file() else None
    base = Path(model) if model is not None else None
    policy, _, position = load_checkpoint(path, trust_remote_code=trust_remote_code, base_path=base)
    return policy, position.memory


def final_policy(run_dir: Path, *, trust_remote_code: bool = False) -> Policy:
    """The policy of a run's last checkpoint.

    Args:
        trust_remote_code: As of `final_agent`.

    Raises:
        RunDirectoryError: It has none, or none that is sound.
    """
    return final_agent(run_dir, trust_remote_code=trust_remote_code)[0]
