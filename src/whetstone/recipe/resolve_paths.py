"""Resolution of file and folder paths in a recipe.

Paths are relative to the recipe's folder, or else to the working directory.

Note:
    A recipe must run from any folder, and a run must be readable from any folder. Existing paths are therefore made
    absolute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_KEYS = frozenset(
    {"answers", "corpus", "data", "database", "file", "folder", "index", "init_state_from", "path", "story", "url"}
)
"""Options of any component that contain a path, or a list of paths."""
_ELSEWHERE = frozenset({"folder", "index", "url"})
"""Options of `_KEYS` that are no inputs of a run, such as working folders and derived indexes."""
_OF_FOLDERS = "frozen"
"""Key of a mapping from names to folders."""


def resolve_paths(keys: Any, folder: Path | None) -> Any:
    """Make the paths of a recipe absolute if they exist.

    A path is searched relative to the recipe, then to the working directory. A path that does not exist stays
    unchanged; its reader reports the error.

    Args:
        keys: Nested keys as in the file, including dotted keys of ablations.
        folder: Folder of the recipe; None: the recipe is not from a file.
    """
    if isinstance(keys, Mapping):
        return {key: _value(str(key).rpartition(".")[2], value, folder) for key, value in keys.items()}
    return [resolve_paths(each, folder) for each in keys] if isinstance(keys, list) else keys


def _value(key: str, value: Any, folder: Path | None) -> Any:
    if key == "start_from" and isinstance(value, str):
        path, step = split_start(value)
        return _resolve(path, folder) + ("" if step is None else f"@{step}")
    if isinstance(value, str):
        return _resolve(value, folder) if key in _KEYS else value
    if key in _KEYS and isinstance(value, list):
        return [_value(key, each, folder) for each in value]
    if key == _OF_FOLDERS and isinstance(value, Mapping):
        return {name: _resolve(each, folder) if isinstance(each, str) else each for name, each in value.items()}
    return resolve_paths(value, folder)


def _resolve(written: str, folder: Path | None) -> str:
    if not written or "://" in written or Path(written).is_absolute():
        return written
    with contextlib.suppress(OSError, ValueError):  # a name no file can have names none
        for place in ([folder] if folder is not None else []) + [Path.cwd()]:
            path = (place / written).resolve()
            if path.exists():
                return str(path)
    return written


def split_start(written: str) -> tuple[str, int | None]:
    """Split `RUN` or `RUN@STEP` into path and step; the step is None if it is not given."""
    path, _, step = written.rpartition("@")
    return (path, int(step)) if path and step.isdecimal() else (written, None)


def list_named_files(keys: Any, dotted: str = "") -> Iterator[tuple[str, Path]]:
    """Yield (dotted key, path) of each input file and folder in a recipe.

    Paths that do not exist are included. Items of lists have their index as key.

    Args:
        keys: Nested keys as in the file.
        dotted: Dotted key of `keys`.
    """
    if isinstance(keys, str):
        *above, last = ["", *(part for part in dotted.split(".") if not part.isdecimal())]
        named = last in _KEYS - _ELSEWHERE or above[-1] == _OF_FOLDERS
        if named and keys and "://" not in keys:
            yield dotted, Path(keys)
        return
    below = keys.items() if isinstance(keys, Mapping) else enumerate(keys) if isinstance(keys, list) else ()
    for key, value in below:
        yield from list_named_files(value, f"{dotted}.{key}".lstrip("."))


def relocate_paths(keys: Any, moved: Mapping[str, Path], dotted: str = "") -> Any:
    """Replace paths that no longer exist by their new locations, if these exist.

    Args:
        keys: Nested keys as in the file.
        moved: Dotted key → new path.
        dotted: Dotted key of `keys`.
    """
    if isinstance(keys, Mapping):
        return {key: relocate_paths(value, moved, f"{dotted}.{key}".lstrip(".")) for key, value in keys.items()}
    if isinstance(keys, list):
        return [relocate_paths(value, moved, f"{dotted}.{number}") for number, value in enumerate(keys)]
    other = moved.get(dotted)
    return str(other) if other is not None and other.exists() and not Path(keys).exists() else keys


def is_file(path: Path) -> bool:
    """Return whether a file exists; False if the path is not a valid file name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
