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
    """Progress of a run."""

    stage: str
    """Current stage."""
    done: dict[str, int]
    """Number of steps made in each started stage."""
    version: int
    """Number of weight updates so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds spent in each stage."""
    sampling: dict[str, Any] | None = None
    """Groups that are alive and the next group, if only the recipe determines them."""
    memory: dict[str, Any] | None = None
    """State of the method's components."""
    steps_before: int = 0
    """Steps of the run whose component state was loaded, and of those before it."""

    @property
    def steps(self) -> int:
        """Return the total number of steps, by which the checkpoint is named."""
        return sum(self.done.values())


class Checkpoints:
    """The checkpoints of a run, written concurrently with training.

    Args:
        keep: Folders that are never deleted.
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
        """Copy everything that determines the further run; the copy is written while training continues.

        Args:
            last: Number of most recent checkpoints that are kept.
            every: Interval in steps at which older checkpoints are kept, too; None: none.
            members: Policy and state of the learner of each other trained member, by name.

        Raises:
            SaveError: If the previous one could not be written.
        """
        await self.written()
        copied = await run_in_compute_thread(_copied, policy, optimizer)

        def write() -> None:
            save_checkpoint(self.run_dir, *copied, position)
            prune_checkpoints(self.run_dir, keep=self.keep, last=last, every=every)

        self._writing = asyncio.create_task(asyncio.to_thread(write))
        return checkpoint_path(self.run_dir, position.steps)

    async def written(self) -> None:
        """Wait until the last saved checkpoint is on disk.

        Raises:
            SaveError: If it could not be written; earlier checkpoints are unchanged.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing


def _copied(policy: Policy, optimizer: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Copy policy and state to the CPU: that saves device memory, and a machine without the device can load them."""
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
    """Save everything that determines the further run. An existing checkpoint of this step is unchanged.

    Raises:
        SaveError: If it cannot be written; earlier checkpoints are unchanged.
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
    """Save a model, its critic and the state of its learner, and the other members in the state."""
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
    """Return the folder of the checkpoint after a number of steps."""
    return run_dir / "checkpoints" / f"step-{steps:06d}"


def latest_checkpoint(
    run_dir: Path, *, log: Callable[[str], None] = lambda line: None, set_aside: bool = False
) -> Path | None:
    """Return the folder of the last intact checkpoint; None if there is none.

    Args:
        log: Receives a line about each damaged one.
        set_aside: Whether damaged ones are renamed, so that another can be saved under the name.
    """
    for path in reversed(checkpoints_in(run_dir)):
        amiss = verify_checkpoint(path)
        if amiss is None:
            return path
        log(f"{path}: a damaged checkpoint ({amiss}); the previous one is used")
        if set_aside:
            aside = path.with_name(f"damaged-{path.name}")
            with convert_save_errors(aside):
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
    return None


def kept_checkpoint(run_dir: Path, *, report: Callable[[str], None] = lambda line: None) -> Path | None:
    """Return the checkpoint whose weights are the result of a run: the selected or the last one.

    `reinforcement.keep: best` selects one.

    Args:
        report: Callback for a line on each damaged one.

    Returns:
        It is None if there is none, or if the selected one is damaged.
    """
    if not (run_dir / KEPT).is_file():
        return latest_checkpoint(run_dir, log=report)
    path = run_dir / "checkpoints" / str(json.loads((run_dir / KEPT).read_text())["checkpoint"])
    amiss = verify_checkpoint(path)
    if amiss is not None:
        report(f"{path}: a damaged checkpoint ({amiss}); delete {KEPT} to use the last one")
    return path if amiss is None else None


def verify_checkpoint(path: Path) -> str | None:
    """Verify the checksums of a checkpoint; return the first difference in one line, None if intact."""
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
    """Return policy, optimizer state and position of a checkpoint.

    Args:
        trust_remote_code: Same as in `load_policy`.
        base_path: Same as in `load_policy`.

    Raises:
        RunDirectoryError: If a file is missing or damaged.
    """
    position = read_position(path)
    return *load_member(path, trust_remote_code=trust_remote_code, base_path=base_path), position


def load_member(
    path: Path, *, trust_remote_code: bool = False, base_path: Path | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Return policy and learner state of a checkpoint, or of a member in one.

    Other members are loaded when needed.

    Args:
        trust_remote_code: Same as in `load_policy`.
        base_path: Same as in `load_policy`.

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
            f"{path}: a damaged checkpoint ({problem}); delete it to resume from the previous one"
        ) from error
    policy = load_policy(path, as_stored=True, trust_remote_code=trust_remote_code, base_path=base_path)
    if critic is not None:
        try:
            policy = replace(policy, critic=restore_critic(policy.model, critic))
        except (LookupError, TypeError, RuntimeError) as error:
            raise RunDirectoryError(f"{path}: its critic does not match this version ({error})") from error
    return policy, optimizer


def load_critic(path: Path) -> dict[str, Any] | None:
    """Return the saved critic of a checkpoint, or of a member in one (`Critic.to_saved_state`).

    It is None if it has none.
    """
    file = path / "trainer" / "critic.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.is_file() else None


def read_position(path: Path) -> Position:
    """Read the position of a run at a checkpoint.

    Raises:
        RunDirectoryError: If it is missing or damaged.
    """
    try:
        return Position(**json.loads((path / "trainer" / "position.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: a damaged checkpoint ({problem}); delete it to resume from the previous one"
        ) from error


def prune_checkpoints(run_dir: Path, *, keep: set[Path], last: int, every: int | None = None) -> None:
    """Delete all but the `last` checkpoints, those to `keep`, and those at multiples of `every` steps."""
    for path in checkpoints_in(run_dir)[:-last]:
        if path not in keep and not (every is not None and _number(path) % every == 0):
            shutil.rmtree(path)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the earliest first; intact or not."""
    folder = run_dir / "checkpoints"
    folders = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(folders, key=_number)


def run_of_checkpoint(path: Path) -> Path | None:
    """Return the run that a checkpoint folder belongs to.

    It is None if it is not a checkpoint, or was copied out of one.
    """
    folder = path.resolve()
    run = folder.parent.parent
    is_checkpoint = folder.parent.name == "checkpoints" and _NAME.fullmatch(folder.name) is not None
    return run if is_checkpoint and (run / "recipe.yaml").is_file() else None


def find_checkpoint(run_dir: Path, name: str) -> Path:
    """Return the checkpoint of a run by its name: `step-000010`, `step-10` or `10`.

    In a run with several stages, the last stage that has this checkpoint is taken; `STAGE/step-10` names another.

    Raises:
        RunDirectoryError: The run has no such checkpoint; the message lists those it has.
    """
    stage, _, step = name.rpartition("/")
    folders = [run_dir, *sorted((run_dir / "stages").glob("*"), key=lambda folder: folder.stat().st_mtime)]
    paths = [path for folder in folders if not stage or folder.name == stage for path in checkpoints_in(folder)]
    number = step.removeprefix("step-")
    matching = [path for path in paths if number.isdecimal() and _number(path) == int(number)]
    if not matching:
        names = ", ".join(dict.fromkeys(path.name for path in paths)) or "none"
        raise RunDirectoryError(f"{run_dir}: no checkpoint {name}; there are: {names}")
    return matching[-1]


def _checksums(folder: Path) -> dict[str, str]:
    """Return the digest of each file by its path in the folder."""
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
