"""Where are the files and modules a recipe names? Beside the recipe, or where one works.

Easy to get wrong: a recipe that only runs from one folder, or a run that can only be looked at from where it was made.
So what is found is written down whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_KEYS = frozenset(
    {"answers", "corpus", "data", "database", "file", "folder", "index", "init_state_from", "path", "story", "url"}
)
"""Options that name a file or folder, or list some, whatever part they are of."""
_ELSEWHERE = frozenset({"folder", "index", "url"})
"""Those of them that hold nothing a run reads alone: what a program works in, what is made of something else."""
_OF_FOLDERS = "frozen"
"""Mappings of this name hold folders by other names."""


def located(keys: Any, folder: Path | None) -> Any:
    """Keys with each file and folder they name made absolute where there is one: beside the recipe before where one
    works. What is found in neither stays as it was written, for whoever reads it to say so.

    Args:
        keys: Nested as in the file; dotted keys of ablations among them.
        folder: Where the recipe is; None: it is in no file.
    """
    if isinstance(keys, Mapping):
        return {key: _value(str(key).rpartition(".")[2], value, folder) for key, value in keys.items()}
    return [located(each, folder) for each in keys] if isinstance(keys, list) else keys


def _value(key: str, value: Any, folder: Path | None) -> Any:
    if key == "start_from" and isinstance(value, str):
        path, step = split_start(value)
        return _found(path, folder) + ("" if step is None else f"@{step}")
    if isinstance(value, str):
        return _found(value, folder) if key in _KEYS else value
    if key in _KEYS and isinstance(value, list):
        return [_value(key, each, folder) for each in value]
    if key == _OF_FOLDERS and isinstance(value, Mapping):
        return {name: _found(each, folder) if isinstance(each, str) else each for name, each in value.items()}
    return located(value, folder)


def _found(written: str, folder: Path | None) -> str:
    if not written or "://" in written or Path(written).is_absolute():
        return written
    with contextlib.suppress(OSError, ValueError):  # a name no file can have names none
        for place in ([folder] if folder is not None else []) + [Path.cwd()]:
            there = (place / written).resolve()
            if there.exists():
                return str(there)
    return written


def split_start(written: str) -> tuple[str, int | None]:
    """Return path and step of `RUN` or `RUN@STEP`."""
    path, _, step = written.rpartition("@")
    return (path, int(step)) if path and step.isdecimal() else (written, None)


def files_named(keys: Any, dotted: str = "") -> Iterator[tuple[str, Path]]:
    """(dotted key, path) of each file and folder that is named, whether or not it is there; of lists by number.

    Args:
        keys: Nested as in the file.
        dotted: Where they stand.
    """
    if isinstance(keys, str):
        *above, last = ["", *(part for part in dotted.split(".") if not part.isdecimal())]
        named = last in _KEYS - _ELSEWHERE or above[-1] == _OF_FOLDERS
        if named and keys and "://" not in keys:
            yield dotted, Path(keys)
        return
    below = keys.items() if isinstance(keys, Mapping) else enumerate(keys) if isinstance(keys, list) else ()
    for key, value in below:
        yield from files_named(value, f"{dotted}.{key}".lstrip("."))


def relocated(keys: Any, moved: Mapping[str, Path], dotted: str = "") -> Any:
    """Return keys with each path that does not exist replaced by that of `moved`, if it exists.

    Args:
        keys: Nested as in the file.
        moved: Dotted key → path.
        dotted: Key of `keys`.
    """
    if isinstance(keys, Mapping):
        return {key: relocated(value, moved, f"{dotted}.{key}".lstrip(".")) for key, value in keys.items()}
    if isinstance(keys, list):
        return [relocated(value, moved, f"{dotted}.{number}") for number, value in enumerate(keys)]
    other = moved.get(dotted)
    return str(other) if other is not None and other.exists() and not Path(keys).exists() else keys


def is_file(path: Path) -> bool:
    """Whether there is a file of this name; of one that no file can have there is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
