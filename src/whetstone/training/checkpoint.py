"""What must be kept to go on as if nothing had happened? Weights as a model folder, and the trainer's state beside.

Every random choice of a run is derived from its seed and its place, so there is no generator to save.

Easy to get wrong: a checkpoint is there or it is not. It is filled aside and renamed, so a folder without
`.partial` in its name is whole.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from whetstone.atomic_write import new_folder
from whetstone.errors import RunDirectoryError
from whetstone.policies import Policy, critic_for, load_policy, save_policy

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come."""

    stage: str
    """The stage it is in."""
    done: dict[str, int]
    """Steps done of each stage begun."""
    version: int
    """Weight updates so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each stage."""

    @property
    def steps(self) -> int:
        """All steps so far; numbers the checkpoint."""
        return sum(self.done.values())


def save_checkpoint(run_dir: Path, policy: Policy, optimizer: dict[str, Any], position: Position) -> Path:
    """Save everything that decides what comes next. An existing checkpoint of this step is kept as it is.

    Raises:
        SaveError: It could not be written; earlier checkpoints are untouched.
    """
    path = checkpoint_path(run_dir, position.steps)
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(path) as folder:
        save_policy(policy, folder)
        (folder / "trainer").mkdir()
        torch.save(optimizer, folder / "trainer" / "optimizer.pt")
        if policy.critic is not None:
            torch.save(policy.critic.state_dict(), folder / "trainer" / "critic.pt")
        (folder / "trainer" / "position.json").write_text(json.dumps(asdict(position), indent=1))
    return path


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Where the checkpoint after so many steps is kept."""
    return run_dir / "checkpoints" / f"step-{steps:06d}"


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The folder of the last checkpoint; None where there is none."""
    return max(_checkpoints(run_dir), key=_number, default=None)


def load_checkpoint(path: Path) -> tuple[Policy, dict[str, Any], Position]:
    """(policy, optimiser state, position)

    Raises:
        RunDirectoryError: Something in it is missing or damaged.
    """
    try:
        position = Position(**json.loads((path / "trainer" / "position.json").read_text()))
        optimizer = torch.load(path / "trainer" / "optimizer.pt", weights_only=True)
        kept = path / "trainer" / "critic.pt"
        critic = torch.load(kept, weights_only=True) if kept.is_file() else None
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, UnpicklingError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: a damaged checkpoint ({said}); delete it to go on from the one before"
        ) from error
    policy = load_policy(path)
    if critic is not None:
        policy = replace(policy, critic=critic_for(policy.model))
        policy.critic.load_state_dict(critic)  # type: ignore[union-attr]
    return policy, optimizer, position


def prune_checkpoints(run_dir: Path, *, keep: set[Path], last: int) -> None:
    """Delete all but the `last` checkpoints and those to `keep`."""
    for path in sorted(_checkpoints(run_dir), key=_number)[:-last]:
        if path not in keep:
            shutil.rmtree(path)


def _checkpoints(run_dir: Path) -> list[Path]:
    folder = run_dir / "checkpoints"
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))
