"""What must be kept to go on as if nothing had happened? Weights as a model folder, and the trainer's state beside.

Every random choice of a run is derived from its seed and its place, so there is no generator to save; which groups
were sampled and consumed is in the store.

Easy to get wrong: a checkpoint is there or it is not. It is filled aside and renamed, so a folder without
`.partial` in its name is whole. What a disk does to it later is told by its checksums, which are compared before
anything of it is believed.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any

import torch

from whetstone.atomic_write import new_folder, saving
from whetstone.chat.fitting import save_chat_settings
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.learning.optimizer import SHARDS
from whetstone.policies import Policy, clone_trainable, critic_from, load_policy, on_cpu, save_policy
from whetstone.recipe import ChatSettings, load_stored_recipe

_NAME = re.compile(r"step-(\d{6,})")
KEPT = "kept.json"
"""In a run directory: the checkpoint that `reinforcement.keep: best` selected."""
_SHARDS = Path("trainer") / "shards"
"""In a checkpoint of several learner processes: what each wrote of the optimiser's state."""
MEMBERS = "members"
"""In a checkpoint: folders of the trained members after the first, by name."""
CHECKSUMS = Path("trainer") / "checksums.json"
"""In a checkpoint: the digest of each of its other files."""


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
    sampling: dict[str, Any] | None = None
    """Which groups are alive and which comes next, where the recipe alone decides that."""
    memory: dict[str, Any] | None = None
    """What the parts of a method remember."""
    steps_before: int = 0
    """Steps of the run whose memory its parts went on from, and of those before it."""

    @property
    def steps(self) -> int:
        """All steps so far; numbers the checkpoint."""
        return sum(self.done.values())


class Checkpoints:
    """The checkpoints of a run, written beside training.

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
        members: Mapping[str, tuple[Policy, dict[str, Any]]] = MappingProxyType({}),
    ) -> Path:
        """Take a copy of everything that decides what comes next; it is written while training goes on.

        Args:
            last: Checkpoints kept.
            every: Those at multiples of so many steps are kept as well.
            members: Policy and state of the learner of each other trained member, by name.

        Raises:
            SaveError: The one before could not be written.
        """
        await self.written()
        copied = await run_in_compute_thread(_copied, policy, optimizer)
        others = {name: await run_in_compute_thread(_copied, *each) for name, each in members.items()}

        def write() -> None:
            save_checkpoint(self.run_dir, *copied, position, others)
            prune_checkpoints(self.run_dir, keep=self.keep, last=last, every=every)

        self._writing = asyncio.create_task(asyncio.to_thread(write))
        return checkpoint_path(self.run_dir, position.steps)

    async def written(self) -> None:
        """Wait until what was saved is on disk.

        Raises:
            SaveError: It could not be written; earlier checkpoints are untouched.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing


def _copied(policy: Policy, optimizer: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Copies on the CPU: a device has better uses for its memory, and a machine without it reads what is written."""
    critic = copy.deepcopy(policy.critic).cpu() if policy.critic is not None else None
    model = clone_trainable(policy.model) if policy.device.type == "cpu" else on_cpu(policy.model)
    return replace(policy, model=model, critic=critic), _cloned(optimizer)


def _cloned(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _cloned(value) for key, value in state.items()}
    return [_cloned(value) for value in state] if isinstance(state, list) else state


def save_checkpoint(
    run_dir: Path,
    policy: Policy,
    optimizer: dict[str, Any],
    position: Position,
    members: Mapping[str, tuple[Policy, dict[str, Any]]] = MappingProxyType({}),
) -> Path:
    """Save everything that decides what comes next. An existing checkpoint of this step is kept as it is.

    Raises:
        SaveError: It could not be written; earlier checkpoints are untouched.
    """
    path = checkpoint_path(run_dir, position.steps)
    if path.is_dir():
        shutil.rmtree(optimizer.get(SHARDS) or "", ignore_errors=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = run_dir / "recipe.yaml"
    chat = load_stored_recipe(stored).recipe.chat if stored.is_file() else None
    with new_folder(path) as folder:
        for name, (model, state) in {"": (policy, optimizer), **members}.items():
            place = Path(MEMBERS) / name if name else Path()
            _save_member(folder / place, model, state, chat, at=path / place)
        (folder / "trainer" / "position.json").write_text(json.dumps(asdict(position), indent=1))
        (folder / CHECKSUMS).write_text(json.dumps(_checksums(folder), indent=1))
    return path


def _save_member(
    folder: Path, policy: Policy, optimizer: dict[str, Any], chat: ChatSettings | None, *, at: Path
) -> None:
    """Save a model, its critic and the state of its learner."""
    (folder / "trainer").mkdir(parents=True)
    save_policy(policy, folder, at=at)
    if chat is not None:
        save_chat_settings(folder, chat.format, chat.variables)
    torch.save({k: v for k, v in optimizer.items() if k != SHARDS}, folder / "trainer" / "optimizer.pt")
    if optimizer.get(SHARDS) is not None:
        shutil.move(optimizer[SHARDS], folder / _SHARDS)
    if policy.critic is not None:
        torch.save(policy.critic.saved(), folder / "trainer" / "critic.pt")


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Where the checkpoint after so many steps is kept."""
    return run_dir / "checkpoints" / f"step-{steps:06d}"


def latest_checkpoint(
    run_dir: Path, *, say: Callable[[str], None] = lambda line: None, set_aside: bool = False
) -> Path | None:
    """The folder of the last checkpoint that is sound; None where there is none.

    Args:
        say: Told of each damaged one.
        set_aside: Whether damaged ones are renamed, so that another can be saved in their place.
    """
    for path in reversed(checkpoints_in(run_dir)):
        amiss = damage(path)
        if amiss is None:
            return path
        say(f"{path}: a damaged checkpoint ({amiss}); the one before it is taken")
        if set_aside:
            aside = path.with_name(f"damaged-{path.name}")
            with saving(aside):
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
    return None


def kept_checkpoint(run_dir: Path, *, report: Callable[[str], None] = lambda line: None) -> Path | None:
    """Return the checkpoint whose weights are the result of a run: the selected one (`reinforcement.keep: best`), or
    the last one.

    Args:
        report: Callback for a line on each damaged one.

    Returns:
        None if there is none, or if the selected one is damaged.
    """
    if not (run_dir / KEPT).is_file():
        return latest_checkpoint(run_dir, say=report)
    path = run_dir / "checkpoints" / str(json.loads((run_dir / KEPT).read_text())["checkpoint"])
    amiss = damage(path)
    if amiss is not None:
        report(f"{path}: a damaged checkpoint ({amiss}); delete {KEPT} to use the last one")
    return path if amiss is None else None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, in a line; None where they are as they were written."""
    try:
        told = json.loads((path / CHECKSUMS).read_text())
        found = _checksums(path)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS}: {type(error).__name__}"
    for name, digest in told.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != digest:
            return f"{name} is not what was written"
    return None


def load_checkpoint(
    path: Path, *, trust_remote_code: bool = False, base_path: Path | None = None
) -> tuple[Policy, dict[str, Any], Position]:
    """Return policy, optimizer state and position of a checkpoint.

    Args:
        trust_remote_code: Same as in `load_policy`.
        base_path: Same as in `load_policy`.

    Raises:
        RunDirectoryError: Something in it is missing or damaged.
    """
    position = position_of(path)
    return *load_member(path, trust_remote_code=trust_remote_code, base_path=base_path), position


def load_member(
    path: Path, *, trust_remote_code: bool = False, base_path: Path | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Return the policy and the optimizer state of a checkpoint, or of a member in a checkpoint.

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
        kept = path / "trainer" / "critic.pt"
        critic = torch.load(kept, weights_only=True, map_location="cpu") if kept.is_file() else None
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, UnpicklingError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: a damaged checkpoint ({said}); delete it to go on from the one before"
        ) from error
    policy = load_policy(path, as_stored=True, trust_remote_code=trust_remote_code, base_path=base_path)
    if critic is not None:
        try:
            policy = replace(policy, critic=critic_from(policy.model, critic))
        except (LookupError, TypeError, RuntimeError) as error:
            raise RunDirectoryError(f"{path}: its critic is none of this version's ({error})") from error
    return policy, optimizer


def position_of(path: Path) -> Position:
    """How far a run had come at a checkpoint.

    Raises:
        RunDirectoryError: It is missing or damaged.
    """
    try:
        return Position(**json.loads((path / "trainer" / "position.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunDirectoryError(
            f"{path}: a damaged checkpoint ({said}); delete it to go on from the one before"
        ) from error


def prune_checkpoints(run_dir: Path, *, keep: set[Path], last: int, every: int | None = None) -> None:
    """Delete all but the `last` checkpoints, those to `keep`, and those at multiples of `every` steps."""
    for path in checkpoints_in(run_dir)[:-last]:
        if path not in keep and not (every is not None and _number(path) % every == 0):
            shutil.rmtree(path)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """The folders of a run's checkpoints, the earliest first; sound or not."""
    folder = run_dir / "checkpoints"
    there = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(there, key=_number)


def run_of_checkpoint(path: Path) -> Path | None:
    """Return the run that a checkpoint folder belongs to; None if it is not a checkpoint, or was copied out of one."""
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
    """Each file's, by its path in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name != CHECKSUMS:
            with open(path, "rb") as file:
                found[str(name)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))
