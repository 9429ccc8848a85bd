"""What is in a run directory, and whose is it? One run, one recipe, one process at a time.

Easy to get wrong: a directory that already holds another run must not be written into, and two processes
must not write one run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from whetstone.atomic_write import saving, write_text
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.plain_json import to_json
from whetstone.plugins import NO_NAME, lost_parts, search_also, searched
from whetstone.recipe import Resolved, load_stored_recipe
from whetstone.recipe.upgrade import upgrade_key
from whetstone.record.inputs import changed_input, inputs_of

_MODULES = "modules.json"
"""Folders in which modules of a recipe were looked for."""
_INPUTS = "inputs.json"
"""Digests of the files and folders it reads; see `inputs_of`."""
_PLACES = frozenset({
    "policy.device", "teacher.device", "teacher.offload", "supervised.optimizer_offload",
    "reinforcement.optimizer_offload", "reinforcement.reference_device", "reinforcement.reference_offload",
})  # fmt: skip
"""Keys that say where things lie: a run goes on elsewhere."""
_EFFECTS = frozenset({"environment.effects", "environment.allow_effects"})
"""Keys that permit calls of tools, and decide nothing else."""
_TOLD = "trackers"
"""The key of who is told of it, which decides nothing: a run goes on with others."""
_SCALE = "scale."
"""What keys begin with that say which machines it runs on: it goes on on others."""
_FIRST = (".lock", "recipe.yaml", _MODULES, _INPUTS)


@contextlib.contextmanager
def claimed(run_dir: Path, resolved: Resolved, *, resume: bool) -> Iterator[None]:
    """Make or reopen a run directory for this recipe, alone, for as long as the block lasts.

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
        _check(run_dir, resolved, resume=resume)
        try:
            yield
        except WhetstoneError:
            if not any(path.stat().st_size for path in run_dir.iterdir() if path.name not in _FIRST):
                for name in (
                    "metrics.jsonl",
                    "recipe.yaml",
                    _MODULES,
                    _INPUTS,
                ):  # refused before anything began: a better one may come
                    (run_dir / name).unlink(missing_ok=True)
            raise


def run_recipe(run_dir: Path) -> Resolved:
    """The recipe of the run in a directory. Modules it names are looked for where the run found them, too.

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
    for folder in folders:
        search_also(Path(folder))
    return _with_bfloat16_muon(load_stored_recipe(path))


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
        write_json(run_dir / _INPUTS, inputs_of(resolved))
        return
    if (changed := changed_input(resolved, before)) is not None:
        said = "is not what this run began with; bring that back, or choose another --run-dir"
        raise RunDirectoryError(f"{run_dir}: {changed} {said}")


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none.

    Raises:
        RunDirectoryError: It is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: is damaged: {str(error)[:160]}") from None


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file, whole or not at all; NaN becomes null.

    Raises:
        SaveError: It could not be written.
    """
    write_text(path, to_json(content, indent=1) + "\n")


def _check(run_dir: Path, resolved: Resolved, *, resume: bool) -> None:
    recipe = run_dir / "recipe.yaml"
    if not recipe.is_file():
        # the partial ones are what a kill leaves of the very first writes
        ours = (".lock", *(name for each in (recipe.name, _MODULES, _INPUTS) for name in (each, f".{each}.partial")))
        others = [path.name for path in run_dir.iterdir() if path.name not in ours]
        if others:
            raise RunDirectoryError(
                f"{run_dir}: is not empty and holds no run ({sorted(others)[0]} is in it); choose another"
            )
        write_json(run_dir / _MODULES, searched())
        write_json(run_dir / _INPUTS, inputs_of(resolved))
        write_text(recipe, resolved.dump())
        return
    if not resume:
        raise RunDirectoryError(
            f"{run_dir}: holds a run already; add --resume to go on with it, or choose another --run-dir"
        )
    held, asked = run_recipe(run_dir).recipe.model_dump(), resolved.recipe.model_dump()
    for key in lost_parts(held):
        raise RunDirectoryError(f"{run_dir}: cannot be gone on with: {key} {NO_NAME}")
    different = (said for key, said in _differences(held, asked, "") if not _decides_nothing(key))
    if (said := next(different, None)) is not None:
        raise RunDirectoryError(f"{run_dir}: holds a run of another recipe: {said}; choose another --run-dir")


def _decides_nothing(key: str) -> bool:
    return key in (*_PLACES, *_EFFECTS, _TOLD) or key.startswith(_SCALE)


def _differences(held: Any, asked: Any, key: str) -> Iterator[tuple[str, str]]:
    """(key, what is different there)"""
    if isinstance(held, dict) and isinstance(asked, dict):
        for name in {**held, **asked}:
            yield from _differences(held.get(name, "absent"), asked.get(name, "absent"), f"{key}.{name}".lstrip("."))
    elif held != asked:
        yield key, f"{key} is {held!r} there and {asked!r} here"
