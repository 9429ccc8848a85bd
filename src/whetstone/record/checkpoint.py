"""Checkpoint saving and loading: weights as a model folder, with the state of the trainer.

Every random choice of a run is derived from its seed and its position, so there is no generator to save. The journal
has the sampled and consumed groups.

Note:
    A checkpoint is written to a temporary folder and renamed, so a folder without `.partial` in its name is complete.
    Checksums detect later damage on disk; they are compared before anything is loaded.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from whetstone.atomic_write import convert_save_errors, new_folder
from whetstone.chat.detect_format import save_chat_settings
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.inference import MEMBERS
from whetstone.learning.optimizer import SHARDS
from whetstone.policies import Policy, clone_trainable, load_policy, on_cpu, restore_critic, save_policy
from whetstone.recipe import ChatSettings, load_stored_recipe

_NAME = re.compile(r"step-(\d{6,})")
KEPT = "kept.json"
"""File in a run directory: the checkpoint that `reinforcement.keep: best` selected."""
_SHARDS = Path("trainer") / "shards"
"""Folder in a checkpoint of several learner processes: the optimizer state of each."""
CHECKSUMS = Path("trainer") / "checksums.json"
"""File in a checkpoint: the digest of each of its other files."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a run at a checkpoint, stored as `trainer/position.json`."""

    stage: str
    """Name of the stage in progress, such as `reinforcement`."""
    done: dict[str, int]
    """Number of steps made in each started stage."""
    version: int
    """Number of weight updates so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds spent in each stage."""
    sampling: dict[str, Any] | None = None
    """Groups in flight and the number of the next group; None if timing also determines them."""
    memory: dict[str, Any] | None = None
    """State of stateful components of the method, such as a curriculum or a replay buffer."""
    steps_before: int = 0
    """Number of steps of earlier runs whose component state this run started with (`init_state_from`)."""

    @property
    def steps(self) -> int:
        """Return the total number of steps over all stages; the checkpoint folder is named after this number."""
        return sum(self.done.values())


class Checkpoints:
    """Saves the checkpoints of a run while training continues. Created by the training loop of a run.

    Args:
        run_dir: Run directory; checkpoints are written to its `checkpoints` folder.
        keep: Checkpoint folders that are never deleted.
    """

    def __init__(self, run_dir: Path, *, keep: set[Path]) -> None:
        self.run_dir, self.keep = run_dir, keep
        self._writing: asyncio.Task[None] | None = None

    async def save(
        self,
        policy: Policy,
        optimizer: dict[str, Any],
        position: Position,
        *,
        last: int,
        every: int | None,
    ) -> Path:
        """Copy weights and learner state to the CPU, and start to write them as a checkpoint.

        The files are written in a thread while training continues. Old checkpoints are deleted afterwards.

        Args:
            policy: Policy to save.
            optimizer: State of the learner, with the states of other trained members.
            position: Progress of the run.
            last: Number of most recent checkpoints that are kept.
            every: Interval in steps at which older checkpoints are also kept; None keeps no older ones.

        Returns:
            Folder of the checkpoint, which does not exist yet.

        Raises:
            SaveError: The previous checkpoint could not be written.
        """
        await self.wait_until_written()
        copied = await run_in_compute_thread(_copied, policy, optimizer)

        def write() -> None:
            save_checkpoint(self.run_dir, *copied, position)
            prune_checkpoints(self.run_dir, keep=self.keep, last=last, every=every)

        self._writing = asyncio.create_task(asyncio.to_thread(write))
        return checkpoint_path(self.run_dir, position.steps)

    async def wait_until_written(self) -> None:
        """Wait until the last saved checkpoint is on disk.

        Raises:
            SaveError: The checkpoint could not be written; earlier checkpoints are unchanged.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing


def _copied(policy: Policy, optimizer: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Copy policy and learner state to the CPU, which saves device memory and lets any machine load the checkpoint."""
    critic = copy.deepcopy(policy.critic).cpu() if policy.critic is not None else None
    model = clone_trainable(policy.model) if policy.device.type == "cpu" else on_cpu(policy.model)
    members = {name: partial(_unchanged, _copied(*state())) for name, state in optimizer.get(MEMBERS, {}).items()}
    state = _cloned({key: value for key, value in optimizer.items() if key != MEMBERS})
    return replace(policy, model=model, critic=critic), state | {MEMBERS: members}


def _unchanged(state: tuple[Policy, dict[str, Any]], *, base_path: Path | None = None) -> tuple[Policy, dict[str, Any]]:
    return state


def _cloned(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _cloned(value) for key, value in state.items()}
    return [_cloned(value) for value in state] if isinstance(state, list) else state


def save_checkpoint(run_dir: Path, policy: Policy, optimizer: dict[str, Any], position: Position) -> Path:
    """Write a checkpoint: weights, learner state and position. An existing checkpoint of the same step is unchanged.

    Returns:
        Folder of the checkpoint.

    Raises:
        SaveError: The checkpoint cannot be written; earlier checkpoints are unchanged.
    """
    path = checkpoint_path(run_dir, position.steps)
    if path.is_dir():
        shutil.rmtree(optimizer.get(SHARDS) or "", ignore_errors=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = run_dir / "recipe.yaml"
    chat = load_stored_recipe(stored).recipe.chat if stored.is_file() else None
    with new_folder(path) as folder:
        _save_member(folder, policy, optimizer, chat, at=path)
        (folder / "trainer" / "position.json").write_text(json.dumps(asdict(position), indent=1))
        (folder / CHECKSUMS).write_text(json.dumps(_checksums(folder), indent=1))
    return path


def _save_member(
    folder: Path, policy: Policy, optimizer: dict[str, Any], chat: ChatSettings | None, *, at: Path
) -> None:
    """Write a model, its critic and its learner state to a folder; then the other members in the learner state."""
    (folder / "trainer").mkdir(parents=True)
    save_policy(policy, folder, at=at)
    if chat is not None:
        save_chat_settings(folder, chat.format, chat.variables)
    torch.save({k: v for k, v in optimizer.items() if k not in (SHARDS, MEMBERS)}, folder / "trainer" / "optimizer.pt")
    if optimizer.get(SHARDS) is not None:
        shutil.move(optimizer[SHARDS], folder / _SHARDS)
    if policy.critic is not None:
        torch.save(policy.critic.to_saved_state(), folder / "trainer" / "critic.pt")
    for name, state in optimizer.get(MEMBERS, {}).items():
        other, learned = state()
        _save_member(folder / MEMBERS / name, other, learned, chat, at=at / MEMBERS / name)


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Return the path of the checkpoint folder for a number of steps, whether it exists or not."""
    return run_dir / "checkpoints" / f"step-{steps:06d}"


def latest_checkpoint(
    run_dir: Path, *, log: Callable[[str], None] = lambda line: None, set_aside: bool = False
) -> Path | None:
    """Return the folder of the last intact checkpoint of a run; None if there is none.

    Args:
        run_dir: Run directory.
        log: Receives a line about each damaged checkpoint.
        set_aside: Whether damaged checkpoints are renamed, so that new ones can be saved under their names.
    """
    for path in reversed(checkpoints_in(run_dir)):
        amiss = verify_checkpoint(path)
        if amiss is None:
            return path
        log(f"{path}: damaged checkpoint ({amiss}); the previous checkpoint is used")
        if set_aside:
            aside = path.with_name(f"damaged-{path.name}")
            with convert_save_errors(aside):
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
    return None


def kept_checkpoint(run_dir: Path, *, report: Callable[[str], None] = lambda line: None) -> Path | None:
    """Return the checkpoint whose weights are the result of a run.

    This is the checkpoint that `reinforcement.keep: best` selected, or otherwise the last intact checkpoint.

    Args:
        run_dir: Run directory.
        report: Receives a line about each damaged checkpoint.

    Returns:
        Folder of the checkpoint; None if the run has none, or if the selected checkpoint is damaged.
    """
    if not (run_dir / KEPT).is_file():
        return latest_checkpoint(run_dir, log=report)
    path = run_dir / "checkpoints" / str(json.loads((run_dir / KEPT).read_text())["checkpoint"])
    amiss = verify_checkpoint(path)
    if amiss is not None:
        report(f"{path}: damaged checkpoint ({amiss}); delete {run_dir / KEPT} to use the last checkpoint instead")
    return path if amiss is None else None


def verify_checkpoint(path: Path) -> str | None:
    """Compare the files of a checkpoint with its checksums.

    Returns:
        Description of the first difference in one line; None if the checkpoint is intact.
    """
    try:
        stored = json.loads((path / CHECKSUMS).read_text())
        current = _checksums(path)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS}: {type(error).__name__}"
    for name, digest in stored.items():
        if name not in current:
            return f"{name} is missing"
        if current[name] != digest:
            return f"{name} differs from its checksum"
    return None


def load_checkpoint(
    path: Path, *, trust_remote_code: bool = False, base_path: Path | None = None
) -> tuple[Policy, dict[str, Any], Position]:
    """Load a checkpoint.

    Args:
        path: Folder of the checkpoint.
        trust_remote_code: See `load_policy`.
        base_path: See `load_policy`.

    Returns:
        (policy, state of the learner, position of the run)

    Raises:
        RunDirectoryError: A file is missing or damaged.
    """
    position = read_position(path)
    return *load_member(path, trust_remote_code=trust_remote_code, base_path=base_path), position


def load_member(
    path: Path, *, trust_remote_code: bool = False, base_path: Path | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Load policy and learner state from a checkpoint folder, or from the subfolder of one of its members.

    The learner state has a function per other member, which loads that member when it is called.

    Args:
        path: Folder of the checkpoint or of the member.
        trust_remote_code: See `load_policy`.
        base_path: See `load_policy`.

    Returns:
        (policy, state of the learner)

    Raises:
        RunDirectoryError: A file is missing or damaged.
    """
    try:
        optimizer = torch.load(path / "trainer" / "optimizer.pt", weights_only=True, map_location="cpu")
        if (path / _SHARDS).is_dir():
            optimizer[SHARDS] = str(path / _SHARDS)
        folders = (path / MEMBERS).iterdir() if (path / MEMBERS).is_dir() else ()
        optimizer[MEMBERS] = {
            folder.name: partial(load_member, folder, trust_remote_code=trust_remote_code) for folder in folders
        }
        critic = load_critic(path)
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, UnpicklingError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: damaged checkpoint ({problem}); delete it to resume from the previous checkpoint"
        ) from error
    policy = load_policy(path, as_stored=True, trust_remote_code=trust_remote_code, base_path=base_path)
    if critic is not None:
        try:
            policy = replace(policy, critic=restore_critic(policy.model, critic))
        except (LookupError, TypeError, RuntimeError) as error:
            raise RunDirectoryError(
                f"{path}: the stored critic does not match this version of Whetstone ({error}); resume with the "
                "version that wrote the checkpoint"
            ) from error
    return policy, optimizer


def load_critic(path: Path) -> dict[str, Any] | None:
    """Load the critic state (`Critic.to_saved_state`) of a checkpoint or member folder; None without a critic."""
    file = path / "trainer" / "critic.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.is_file() else None


def read_position(path: Path) -> Position:
    """Read the progress of the run that is stored in a checkpoint.

    Raises:
        RunDirectoryError: The checkpoint does not exist, or its `trainer/position.json` is missing or damaged.
    """
    run = run_of_checkpoint(path)
    if run is not None and not path.is_dir():
        find_checkpoint(run, path.name)  # raises the error that lists the existing checkpoints
    try:
        return Position(**json.loads((path / "trainer" / "position.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: damaged checkpoint ({problem}); delete it to resume from the previous checkpoint"
        ) from error


def prune_checkpoints(run_dir: Path, *, keep: set[Path], last: int, every: int | None = None) -> None:
    """Delete old checkpoints of a run.

    Args:
        run_dir: Run directory.
        keep: Folders that are not deleted.
        last: Number of most recent checkpoints that remain.
        every: Checkpoints at multiples of this number of steps also remain; None: no others.
    """
    for path in checkpoints_in(run_dir)[:-last]:
        if path not in keep and not (every is not None and _number(path) % every == 0):
            shutil.rmtree(path)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """Return the checkpoint folders of a run, the earliest first, whether intact or damaged."""
    folder = run_dir / "checkpoints"
    folders = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(folders, key=_number)


def run_of_checkpoint(path: Path) -> Path | None:
    """Return the run directory that a checkpoint folder is in.

    The result is None if the folder is not a checkpoint, or was copied out of its run directory.
    """
    folder = path.resolve()
    run = folder.parent.parent
    is_checkpoint = folder.parent.name == "checkpoints" and _NAME.fullmatch(folder.name) is not None
    return run if is_checkpoint and (run / "recipe.yaml").is_file() else None


def find_checkpoint(run_dir: Path, name: str) -> Path:
    """Find a checkpoint of a run by its name.

    Args:
        run_dir: Run directory.
        name: `step-000010`, `step-10` or `10`. If several stages have the checkpoint, the last stage is used;
            `STAGE/step-10` names a stage.

    Raises:
        RunDirectoryError: The run has no such checkpoint; the message lists the existing ones.
    """
    stage, _, step = name.rpartition("/")
    folders = [run_dir, *sorted((run_dir / "stages").glob("*"), key=lambda folder: folder.stat().st_mtime)]
    paths = [path for folder in folders if not stage or folder.name == stage for path in checkpoints_in(folder)]
    number = step.removeprefix("step-")
    matching = [path for path in paths if number.isdecimal() and _number(path) == int(number)]
    if not matching:
        names = ", ".join(dict.fromkeys(path.name for path in paths)) or "none"
        raise RunDirectoryError(f"{run_dir}: no checkpoint {name}; existing checkpoints: {names}")
    return matching[-1]


def _checksums(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 digest of each file of a checkpoint, by path relative to the folder."""
    checksums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name != CHECKSUMS:
            with open(path, "rb") as file:
                checksums[str(name)] = hashlib.file_digest(file, "sha256").hexdigest()
    return checksums


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))
