"""Run directories: creates, locks and reopens the directory of a run, and reads its recipe.

Note:
    A directory with another run must not be written to, and two processes must not write one run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from whetstone.atomic_write import convert_save_errors, write_text
from whetstone.errors import RunDirectoryError, WhetstoneError, did_you_mean
from whetstone.plugins import NO_NAME, add_search_path, find_unresolvable_functions, get_search_paths
from whetstone.recipe import Resolved, load_stored_recipe
from whetstone.recipe.resolve_paths import list_named_files
from whetstone.recipe.resume_changes import (
    FIXED,
    Era,
    RecipeChange,
    find_differences,
    find_effect,
    format_override,
    list_eras,
    parse_changes,
)
from whetstone.recipe.upgrade import upgrade_key
from whetstone.recipe.variables import without_secrets
from whetstone.record.custom_code import find_moved_folders
from whetstone.record.finding import MODULES as _MODULES
from whetstone.record.input_digests import changed_inputs, input_digests
from whetstone.strict_json import to_json

fcntl: Any
msvcrt: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # other systems
    msvcrt = None

_INPUTS = "inputs.json"
"""Digests of the files and folders that the run reads; see `input_digests`."""
Differences = Mapping[str, tuple[Any, Any]]
"""Dotted key → (value before, value after)."""
ORIGIN = "origin.json"
"""Name of the recipe, and paths of its inputs relative to the run directory, which still hold after both are moved."""
_CHANGES = "changes.json"
"""Changes of the recipe since the run started; see `RecipeChange`."""
_OTHER_INPUT = "differs from the input that this run started with; restore it, or choose another --run-dir"
_ACCEPT_INPUT = "; resume with --accept-changes to continue with the new content"
_FIXED_INPUTS = frozenset({"policy", "policies", "chat", "start_from"})
"""Sections of a recipe whose files cannot change in a run: the weights and the tokens depend on them."""
ENVIRONMENT = "environment.json"
"""Versions, machine and custom code of the run; see `training/run_provenance.py`."""
OVERLAP = "overlap.json"
"""Evaluation tasks in the training data; see `find_overlap`."""
_MAX_LISTED = 10
"""Maximum number of runs that a message lists."""
_FIRST = (".lock", "recipe.yaml", _MODULES, _INPUTS, ORIGIN, ENVIRONMENT, OVERLAP)


@contextlib.contextmanager
def open_run_directory(
    run_dir: Path,
    resolved: Resolved,
    *,
    resume: bool,
    change: Callable[[Resolved, Differences], None] | None = None,
    accept_changes: bool = False,
) -> Iterator[None]:
    """Create or reopen a run directory for a recipe, and hold an exclusive lock on it within the block.

    Args:
        run_dir: The run directory.
        resolved: The recipe of the run.
        resume: Whether an existing run is continued; otherwise it is refused.
        change: Records the differences from the stored recipe, which it receives, as a change of the run; None: a run
            whose recipe differs is refused.
        accept_changes: See `check_inputs`.

    Raises:
        RunDirectoryError: The directory has another run, or a run without `resume`, or another process uses it.
        SaveError: The directory cannot be created.
    """
    with convert_save_errors(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / ".lock", "a+") as lock:
        try:
            _lock_file(lock)
        except OSError:
            lock.seek(0)
            number = lock.read().strip()
            process = f"another process{number and f' ({number})'} is training here"
            raise RunDirectoryError(f"{run_dir}: {process}; wait until it ends, or choose another --run-dir") from None
        with contextlib.suppress(OSError):  # the disk is full; the number is only for the message
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), str(os.getpid()).encode())
        _check(run_dir, resolved, resume=resume, change=change, accept_changes=accept_changes)
        try:
            yield
        except WhetstoneError:
            if not any(path.stat().st_size for path in run_dir.iterdir() if path.name not in _FIRST):
                for name in ("metrics.jsonl", *_FIRST[1:]):  # refused before the start: another recipe may follow
                    (run_dir / name).unlink(missing_ok=True)
            raise


def _lock_file(file: IO[str]) -> None:
    """Lock a file exclusively until it is closed; without `fcntl` or `msvcrt` there is no lock.

    Raises:
        OSError: If another process has the lock.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


_LOCKED_BYTE = 1 << 30
"""Position of the byte that Windows locks, after the process id that other processes read."""


def run_recipe(run_dir: Path) -> Resolved:
    """Load the recipe of a run from its directory, with the changes made since its start.

    Modules that it names are also searched for in the folders of the run, or, if those were moved, in the folders above
    the run directory. Inputs that were moved are searched for at the same path relative to the run directory.

    Raises:
        RunDirectoryError: The directory has no run, or its files are damaged.
    """
    path = run_dir / "recipe.yaml"
    if not path.is_file():
        run = run_dir.resolve().parent.parent
        if run_dir.resolve().parent.name == "checkpoints" and (run / "recipe.yaml").is_file():
            problem = f"is a checkpoint, not a run; name the run ({run}), or the recipe with --policy {run_dir}"
            raise RunDirectoryError(f"{run_dir}: {problem}")
        if not run_dir.exists():
            raise RunDirectoryError(f"{run_dir}: no such file or run directory{_nearest_run(run_dir)}")
        raise RunDirectoryError(f"{run_dir}: holds no run (recipe.yaml is missing)")
    folders = read_json(run_dir / _MODULES) or []
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise RunDirectoryError(f"{run_dir / _MODULES}: damaged file: a JSON list of folders is expected")
    environment = read_json(run_dir / ENVIRONMENT) or {}
    modules = [event["modules"] for event in (environment, *environment.get("events", [])) if "modules" in event]
    for folder in (*folders, *find_moved_folders(run_dir, folders, modules[-1] if modules else {})):
        add_search_path(Path(folder))
    origin = _read_origin(run_dir)
    moved = {key: (run_dir / relative).resolve() for key, relative in origin.get("paths", {}).items()}
    resolved = _with_bfloat16_muon(load_stored_recipe(path, moved=moved))
    for change in read_changes(run_dir)[-1:]:  # a kill can leave the recipe before its last change
        resolved = resolved.with_changes({key: after for key, (_, after) in change.keys.items()})
    return replace(resolved, name=origin["recipe"]) if "recipe" in origin else resolved


def _nearest_run(run_dir: Path) -> str:
    """Format the end of the message about a missing run: the run with a similar name in its folder, or all runs."""
    runs = sorted(path.parent.name for path in run_dir.parent.glob("*/recipe.yaml"))
    return did_you_mean(run_dir.name, runs[:_MAX_LISTED])


def read_changes(run_dir: Path) -> list[RecipeChange]:
    """Read the changes of the recipe since a run started, earliest first; empty if there are none.

    Raises:
        RunDirectoryError: `changes.json` is damaged.
    """
    path = run_dir / _CHANGES
    try:
        return parse_changes(read_json(path))
    except ValueError as error:
        raise RunDirectoryError(f"{path}: is damaged: {error}") from None


def run_eras(run_dir: Path) -> list[Era]:
    """Return the recipes that a run has had, earliest first; the last one is `run_recipe`."""
    return list_eras(run_recipe(run_dir), read_changes(run_dir))


def write_recipe(run_dir: Path, resolved: Resolved, changes: Sequence[RecipeChange] = ()) -> None:
    """Store the recipe of a run, its origin, and the changes that led to it.

    Args:
        run_dir: The run directory.
        resolved: The recipe.
        changes: All changes since the run started; empty: the stored changes are unchanged.
    """
    if changes:
        write_json(run_dir / _CHANGES, [each.to_json() for each in changes], is_private=True)
    _write_origin(run_dir, resolved)
    write_text(run_dir / "recipe.yaml", resolved.dump(), is_private=True)


def _write_origin(run_dir: Path, resolved: Resolved) -> None:
    named = list_named_files(resolved.recipe.model_dump(exclude={"ablations"}))
    paths = {key: os.path.relpath(path, run_dir.resolve()) for key, path in named if path.is_absolute()}
    write_json(run_dir / ORIGIN, {"recipe": resolved.name, "paths": paths}, is_private=True)


def _read_origin(run_dir: Path) -> dict[str, Any]:
    stored = read_json(run_dir / ORIGIN) or {}
    if not isinstance(stored, dict):
        raise RunDirectoryError(f"{run_dir / ORIGIN}: damaged file: a JSON object is expected")
    return stored


def _with_bfloat16_muon(resolved: Resolved) -> Resolved:
    """Return a stored recipe with the precision of Muon written out: recipes that lack it were run in bfloat16."""
    kinds = [kind for kind, stage in resolved.recipe.own_stages.items() if stage.optimizer == "muon"]
    return resolved.with_changes({f"{kind}.optimizer": "muon_bfloat16" for kind in kinds}) if kinds else resolved


def run_inputs(run_dir: Path) -> dict[str, str] | None:
    """Read the digests of a run's inputs by recipe key (see `input_digests`); None if an old release stored none.

    Keys of earlier releases are converted to the names of this release.

    Raises:
        RunDirectoryError: `inputs.json` is damaged.
    """
    stored = read_json(run_dir / _INPUTS)
    if stored is not None and not isinstance(stored, dict):
        raise RunDirectoryError(f"{run_dir / _INPUTS}: damaged file: a JSON object of keys and digests is expected")
    return None if stored is None else {upgrade_key(key): digest for key, digest in stored.items()}


def check_inputs(
    run_dir: Path, resolved: Resolved, *, log: Callable[[str], None], accept_changes: bool = False
) -> None:
    """Check that the input files of a resumed run are unchanged, or that their changes are accepted.

    Args:
        run_dir: The run directory.
        resolved: The recipe of the run.
        log: Receives a line if the original digests are unknown, and one per accepted change.
        accept_changes: Whether files with tasks and data may differ. Their new digests are stored, also as an event in
            `environment.json`.

    Raises:
        RunDirectoryError: A file or folder differs and its change is not accepted; the message names it.
    """
    before = run_inputs(run_dir)
    if before is None:
        log(f"{run_dir}: an earlier version stored no digests of its inputs; the current ones are stored")
        write_json(run_dir / _INPUTS, input_digests(resolved), is_private=True)
        return
    changed = changed_inputs(resolved, before)
    refused = [key for key in changed if not accept_changes or _is_fixed(key)]
    for key in refused:
        raise RunDirectoryError(f"{run_dir}: {changed[key]} {_other_input(key)}")
    if changed:
        now = input_digests(resolved)
        digests = {key: now[key] for key in changed}
        environment = read_json(run_dir / ENVIRONMENT)
        if isinstance(environment, dict):
            event = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": "resumed", "inputs": digests}
            environment["events"] = [*environment.get("events", []), event]
            write_json(run_dir / ENVIRONMENT, environment, is_private=True)
        write_json(run_dir / _INPUTS, {**before, **digests}, is_private=True)
    for place in changed.values():
        log(f"{place} was edited; the run continues with its new content (recorded in {ENVIRONMENT})")


def _is_fixed(key: str) -> bool:
    return key.partition(".")[0] in _FIXED_INPUTS


def _other_input(key: str) -> str:
    """Format problem and remedy of an input that differs, by its recipe key."""
    return _OTHER_INPUT + ("" if _is_fixed(key) else _ACCEPT_INPUT)


def read_json(path: Path) -> Any:
    """Read a JSON file of a run; return None if the file does not exist.

    Raises:
        RunDirectoryError: The file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: is damaged: {str(error)[:160]}") from None


def write_json(path: Path, content: Any, *, is_private: bool = False) -> None:
    """Write a JSON file atomically, replacing an existing one; NaN becomes null.

    Args:
        path: The file.
        content: JSON values.
        is_private: Whether only the owner can read the file.

    Raises:
        SaveError: The file cannot be written.
    """
    write_text(path, to_json(content, indent=1) + "\n", is_private=is_private)


def _find_unused(run_dir: Path) -> Path:
    """Return the first of `NAME-2`, `NAME-3`, … that does not exist."""
    numbered = (Path(f"{run_dir}-{number}") for number in itertools.count(2))
    return next(path for path in numbered if not path.exists())


def _check(
    run_dir: Path,
    resolved: Resolved,
    *,
    resume: bool,
    change: Callable[[Resolved, Differences], None] | None,
    accept_changes: bool,
) -> None:
    recipe = run_dir / "recipe.yaml"
    if not recipe.is_file():
        # an interruption of the first writes leaves the partial files
        allowed = (
            ".lock",
            *(name for each in (recipe.name, _MODULES, _INPUTS, ORIGIN) for name in (each, f".{each}.partial")),
        )
        others = [path.name for path in run_dir.iterdir() if path.name not in allowed]
        if others:
            raise RunDirectoryError(
                f"{run_dir}: is not empty and holds no run ({sorted(others)[0]} is in it); choose another --run-dir"
            )
        write_json(run_dir / _MODULES, get_search_paths(), is_private=True)
        write_json(run_dir / _INPUTS, input_digests(resolved), is_private=True)
        write_recipe(run_dir, resolved)
        return
    if not resume:
        raise RunDirectoryError(
            f"{run_dir}: holds a run already; add --resume to continue it; for a new run, also with other keys, choose "
            f"another directory, such as --run-dir {_find_unused(run_dir)}"
        )
    stored = run_recipe(run_dir)
    for key in find_unresolvable_functions(stored.recipe.model_dump()):
        raise RunDirectoryError(f"{run_dir}: cannot be resumed: {key} {NO_NAME}")
    before, now = run_inputs(run_dir) or {}, input_digests(resolved)
    paths = dict(list_named_files(resolved.recipe.model_dump(exclude={"ablations"})))
    different = find_differences(*(without_secrets(each.to_dict()) for each in (stored, resolved)))
    moved = {key for key in different if key in before and key in now}
    for key in moved:
        if before[key] != now[key] and (not accept_changes or _is_fixed(key)):
            raise RunDirectoryError(f"{run_dir}: {paths[key]} ({key}) {_other_input(key)}")
    deciding = {key: values for key, values in different.items() if key not in moved and find_effect(key) != "none"}
    if deciding and change is None:
        key, (old, new) = next(iter(deciding.items()))
        remedy = f"`whetstone train {run_dir} --resume` continues it as it is"
        if (run_dir / "live").is_dir():
            remedy = f"{key}={format_override(old)} continues it"
        elif find_effect(key) != FIXED:
            remedy += f", and `--resume {key}=…` with another value from its last checkpoint on"
        raise RunDirectoryError(
            f"{run_dir}: holds a run of another recipe: {key} is {old!r} there and {new!r} here; {remedy}; for a new "
            "run choose another --run-dir"
        )
    if deciding and change is not None:
        change(stored, deciding)
    elif moved or (different and change is not None):
        write_recipe(run_dir, resolved)
