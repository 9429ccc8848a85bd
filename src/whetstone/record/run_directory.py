"""What is in a run directory, and whose is it? One run, one recipe, one process at a time.

Easy to get wrong: a directory that already holds another run must not be written into, and two processes
must not write one run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whetstone.atomic_write import saving, write_text
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.plain_json import to_json
from whetstone.plugins import NO_NAME, lost_parts, search_also, searched
from whetstone.recipe import Resolved, load_stored_recipe
from whetstone.recipe.continuing import FIXED, Era, RecipeChange, effect_of, eras_of, find_differences, parse_changes
from whetstone.recipe.locating import files_named
from whetstone.recipe.upgrade import upgrade_key
from whetstone.recipe.variables import without_secrets
from whetstone.record.custom_code import find_moved_folders
from whetstone.record.finding import MODULES as _MODULES
from whetstone.record.inputs import changed_input, inputs_of

_INPUTS = "inputs.json"
"""Digests of the files and folders it reads; see `inputs_of`."""
Differences = Mapping[str, tuple[Any, Any]]
"""Dotted key → (value before, value after)."""
ORIGIN = "origin.json"
"""Name of the recipe, and paths of its inputs relative to the run directory, which still hold after both are moved."""
_CHANGES = "changes.json"
"""Changes of the recipe since the run started; see `RecipeChange`."""
_OTHER_INPUT = "is not what this run began with; bring that back, or choose another --run-dir"
ENVIRONMENT = "environment.json"
"""Versions, machine and custom code that produced it; see `training/provenance.py`."""
OVERLAP = "overlap.json"
"""Evaluation tasks in the training data; see `find_overlap`."""
_FIRST = (".lock", "recipe.yaml", _MODULES, _INPUTS, ORIGIN, ENVIRONMENT, OVERLAP)


@contextlib.contextmanager
def claimed(
    run_dir: Path, resolved: Resolved, *, resume: bool, change: Callable[[Resolved, Differences], None] | None = None
) -> Iterator[None]:
    """Make or reopen a run directory for this recipe, alone, for as long as the block lasts.

    Args:
        change: Records the differences from the stored recipe, which it receives, as a change of the run; None: a run
            whose recipe differs is refused.

    Raises:
        RunDirectoryError: It holds another run, or a run and `resume` was not asked for, or it is in use.
        SaveError: It cannot be made.
    """
    with saving(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunDirectoryError(f"{run_dir}: another process is training here") from None
        _check(run_dir, resolved, resume=resume, change=change)
        try:
            yield
        except WhetstoneError:
            if not any(path.stat().st_size for path in run_dir.iterdir() if path.name not in _FIRST):
                for name in ("metrics.jsonl", *_FIRST[1:]):  # refused before anything began: a better one may come
                    (run_dir / name).unlink(missing_ok=True)
            raise


def run_recipe(run_dir: Path) -> Resolved:
    """Return the recipe of the run in a directory.

    Modules that it names are also searched for where the run found them, or, if that was moved, in the folders above
    the run directory. Inputs that are no longer where they were are
    searched for at the same place relative to the run directory.

    Raises:
        RunDirectoryError: There is no run in it.
    """
    path = run_dir / "recipe.yaml"
    if not path.is_file():
        run = run_dir.resolve().parent.parent
        if run_dir.resolve().parent.name == "checkpoints" and (run / "recipe.yaml").is_file():
            said = f"is a checkpoint, not a run; name the run ({run}), or the recipe with --policy {run_dir}"
            raise RunDirectoryError(f"{run_dir}: {said}")
        raise RunDirectoryError(f"{run_dir}: holds no run (recipe.yaml is missing)")
    folders = read_json(run_dir / _MODULES) or []
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise RunDirectoryError(f"{run_dir / _MODULES}: is no list of folders")
    environment = read_json(run_dir / ENVIRONMENT) or {}
    modules = [event["modules"] for event in (environment, *environment.get("events", [])) if "modules" in event]
    for folder in (*folders, *find_moved_folders(run_dir, folders, modules[-1] if modules else {})):
        search_also(Path(folder))
    origin = _read_origin(run_dir)
    moved = {key: (run_dir / relative).resolve() for key, relative in origin.get("paths", {}).items()}
    resolved = _with_bfloat16_muon(load_stored_recipe(path, moved=moved))
    for change in read_changes(run_dir)[-1:]:  # a kill can leave the recipe before its last change
        resolved = resolved.with_changes({key: after for key, (_, after) in change.keys.items()})
    return replace(resolved, name=origin["recipe"]) if "recipe" in origin else resolved


def read_changes(run_dir: Path) -> list[RecipeChange]:
    """Return the changes of the recipe of a run, earliest first.

    Raises:
        RunDirectoryError: The file is damaged.
    """
    path = run_dir / _CHANGES
    try:
        return parse_changes(read_json(path))
    except ValueError as error:
        raise RunDirectoryError(f"{path}: is damaged: {error}") from None


def run_eras(run_dir: Path) -> list[Era]:
    """Return the recipes that a run has had, earliest first; the last one is `run_recipe`."""
    return eras_of(run_recipe(run_dir), read_changes(run_dir))


def write_recipe(run_dir: Path, resolved: Resolved, changes: Sequence[RecipeChange] = ()) -> None:
    """Store the recipe of a run, with the changes that led to it."""
    if changes:
        write_json(run_dir / _CHANGES, [each.to_json() for each in changes], is_private=True)
    _write_origin(run_dir, resolved)
    write_text(run_dir / "recipe.yaml", resolved.dump(), is_private=True)


def _write_origin(run_dir: Path, resolved: Resolved) -> None:
    named = files_named(resolved.recipe.model_dump(exclude={"ablations"}))
    paths = {key: os.path.relpath(path, run_dir.resolve()) for key, path in named if path.is_absolute()}
    write_json(run_dir / ORIGIN, {"recipe": resolved.name, "paths": paths}, is_private=True)


def _read_origin(run_dir: Path) -> dict[str, Any]:
    stored = read_json(run_dir / ORIGIN) or {}
    if not isinstance(stored, dict):
        raise RunDirectoryError(f"{run_dir / ORIGIN}: is not a mapping")
    return stored


def _with_bfloat16_muon(resolved: Resolved) -> Resolved:
    """Return a stored recipe with the precision of Muon written out: recipes that lack it were run in bfloat16."""
    kinds = [kind for kind, stage in resolved.recipe.own_stages.items() if stage.optimizer == "muon"]
    return resolved.with_changes({f"{kind}.optimizer": "muon_bfloat16" for kind in kinds}) if kinds else resolved


def run_inputs(run_dir: Path) -> dict[str, str] | None:
    """Return the digests of a run's inputs by recipe key (see `inputs_of`), or None if an old release stored none.

    Keys of earlier releases are converted to the names of this release.

    Raises:
        RunDirectoryError: They are damaged.
    """
    told = read_json(run_dir / _INPUTS)
    if told is not None and not isinstance(told, dict):
        raise RunDirectoryError(f"{run_dir / _INPUTS}: is no mapping of keys to digests")
    return None if told is None else {upgrade_key(key): digest for key, digest in told.items()}


def check_inputs(run_dir: Path, resolved: Resolved, *, say: Callable[[str], None]) -> None:
    """See that a run goes on with what it began with.

    Args:
        say: Told where nobody knows what it began with.

    Raises:
        RunDirectoryError: A file or folder is another; the message says which.
    """
    before = run_inputs(run_dir)
    if before is None:
        say(f"{run_dir}: was begun by a version that kept no digests of its data; what they are now is kept")
        write_json(run_dir / _INPUTS, inputs_of(resolved), is_private=True)
        return
    if (changed := changed_input(resolved, before)) is not None:
        raise RunDirectoryError(f"{run_dir}: {changed} {_OTHER_INPUT}")


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none.

    Raises:
        RunDirectoryError: It is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: is damaged: {str(error)[:160]}") from None


def write_json(path: Path, content: Any, *, is_private: bool = False) -> None:
    """Replace a JSON file, whole or not at all; NaN becomes null.

    Args:
        is_private: Whether only the owner can read the file.

    Raises:
        SaveError: It could not be written.
    """
    write_text(path, to_json(content, indent=1) + "\n", is_private=is_private)


def _check(
    run_dir: Path, resolved: Resolved, *, resume: bool, change: Callable[[Resolved, Differences], None] | None
) -> None:
    recipe = run_dir / "recipe.yaml"
    if not recipe.is_file():
        # the partial ones are what a kill leaves of the very first writes
        ours = (
            ".lock",
            *(name for each in (recipe.name, _MODULES, _INPUTS, ORIGIN) for name in (each, f".{each}.partial")),
        )
        others = [path.name for path in run_dir.iterdir() if path.name not in ours]
        if others:
            raise RunDirectoryError(
                f"{run_dir}: is not empty and holds no run ({sorted(others)[0]} is in it); choose another"
            )
        write_json(run_dir / _MODULES, searched(), is_private=True)
        write_json(run_dir / _INPUTS, inputs_of(resolved), is_private=True)
        write_recipe(run_dir, resolved)
        return
    if not resume:
        raise RunDirectoryError(
            f"{run_dir}: holds a run already; add --resume to go on with it, or choose another --run-dir"
        )
    stored = run_recipe(run_dir)
    for key in lost_parts(stored.recipe.model_dump()):
        raise RunDirectoryError(f"{run_dir}: cannot be gone on with: {key} {NO_NAME}")
    before, now = run_inputs(run_dir) or {}, inputs_of(resolved)
    paths = dict(files_named(resolved.recipe.model_dump(exclude={"ablations"})))
    different = find_differences(*(without_secrets(each.stored()) for each in (stored, resolved)))
    moved = {key for key in different if key in before and key in now}
    for key in moved:
        if before[key] != now[key]:
            raise RunDirectoryError(f"{run_dir}: {paths[key]} ({key}) {_OTHER_INPUT}")
    deciding = {key: values for key, values in different.items() if key not in moved and effect_of(key) != "none"}
    if deciding and change is None:
        key, (old, new) = next(iter(deciding.items()))
        other = f", and `--resume {key}=…` with another value from its last checkpoint on"
        raise RunDirectoryError(
            f"{run_dir}: holds a run of another recipe: {key} is {old!r} there and {new!r} here; `whetstone train "
            f"{run_dir} --resume` continues it as it is{other if effect_of(key) != FIXED else ''}; for a new run "
            "choose another --run-dir"
        )
    if deciding and change is not None:
        change(stored, deciding)
    elif moved or (different and change is not None):
        write_recipe(run_dir, resolved)
