"""What did a run read, to the last byte? A digest of each file and folder its recipe names.

Two runs of one recipe are the same run only where these are the same, too.

Easy to get wrong: a policy's folder may hold gigabytes, and a chain of stages asks for it at every stage. So each file
is read once in a process, in pieces, and a checkpoint is known by the checksums that lie in it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from whetstone.errors import RunDirectoryError
from whetstone.recipe import Resolved
from whetstone.recipe.locating import files_named
from whetstone.recipe.variables import decisive_variables
from whetstone.record.checkpoint import CHECKSUMS, checkpoints_in


def inputs_of(resolved: Resolved) -> dict[str, str]:
    """By dotted key, the digest of each file and folder the recipe names there, in hexadecimal. Ablations are runs of
    their own, whose keys are theirs; what is not there has none. Environment variables of the recipe have one, too
    (`key ${NAME}`), except those of credentials.

    Of a run directory what it sampled and its last checkpoint are counted, of a checkpoint its checksums, of another
    folder every file that is not hidden.

    Raises:
        RunDirectoryError: Something in it cannot be read.
    """
    written = resolved.recipe.model_dump(exclude={"ablations"})
    found = {}
    for key, path in files_named(written):
        digest = _digest(path)
        if digest is not None:
            found[key] = digest
    for key, value in decisive_variables(resolved.keys).items():
        found[key] = hashlib.sha256(value.encode()).hexdigest()
    return found


def changed_input(resolved: Resolved, before: Mapping[str, str]) -> str | None:
    """`path (key)` of the first file or folder that is not what it was; None where all are. What is no longer there is
    not asked about: whoever reads it says so, and a policy that training has begun from is needed no more.

    Args:
        before: As of `inputs_of`.
    """
    now = inputs_of(resolved)
    paths = dict(files_named(resolved.recipe.model_dump(exclude={"ablations"})))
    return next(
        (f"{paths[key]} ({key})" if key in paths else key for key in now if before.get(key, now[key]) != now[key]), None
    )


def of_keys(inputs: Mapping[str, str], sections: frozenset[str]) -> dict[str, str]:
    """The inputs that stand in these sections of a recipe."""
    return {key: digest for key, digest in inputs.items() if key.partition(".")[0] in sections}


def together(inputs: Mapping[str, str]) -> str:
    """One digest of all of them."""
    told = "".join(f"{key} {digest}\n" for key, digest in sorted(inputs.items()))
    return hashlib.sha256(told.encode()).hexdigest()


def _digest(path: Path) -> str | None:
    if path.is_file():
        return _of_file(path)
    if not path.is_dir():
        return None
    return together({str(file.relative_to(path)): _of_file(file) for file in _files(path)})


def _files(folder: Path) -> Iterator[Path]:
    if (folder / CHECKSUMS).is_file():  # a checkpoint
        yield folder / CHECKSUMS
    elif (folder / "recipe.yaml").is_file():  # a run
        yield from (folder / "store").glob("journal.jsonl")
        yield from (folder / "trajectories").glob("step-*.jsonl")
        yield from (path / CHECKSUMS for path in checkpoints_in(folder)[-1:] if (path / CHECKSUMS).is_file())
    else:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path


def _of_file(path: Path) -> str:
    about = path.stat()
    try:
        return _read(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read ({error.strerror})") from None


@functools.cache
def _read(path: Path, size: int, changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
