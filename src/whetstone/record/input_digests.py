"""Digests of the input files and folders that a recipe names.

Two runs of one recipe are equal only if these are equal, too.

Note:
    A model folder can have gigabytes, and every stage of a chain needs its digest. Each file is therefore read once per
    process, in chunks, and the digest of a checkpoint is computed from its checksums.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from whetstone.errors import RunDirectoryError
from whetstone.recipe import Resolved
from whetstone.recipe.resolve_paths import list_named_files
from whetstone.recipe.variables import find_decisive_variables
from whetstone.record.checkpoint import CHECKSUMS, checkpoints_in


def input_digests(resolved: Resolved) -> dict[str, str]:
    """Compute the SHA-256 digest of each input file and folder of a recipe.

    The digest of a run directory covers its sampled groups and its last checkpoint; that of a checkpoint covers its
    checksums; that of any other folder covers every file that is not hidden. Environment variables of the recipe also
    have a digest (`key ${NAME}`), except credentials. Inputs of ablations, which are separate runs, have none.

    Returns:
        Dotted recipe key → digest in hexadecimal; a missing file has no digest.

    Raises:
        RunDirectoryError: A file cannot be read.
    """
    written = resolved.recipe.model_dump(exclude={"ablations"})
    digests = {}
    for key, path in list_named_files(written):
        digest = _digest(path)
        if digest is not None:
            digests[key] = digest
    for key, value in find_decisive_variables(resolved.keys).items():
        digests[key] = hashlib.sha256(value.encode()).hexdigest()
    return digests


def changed_inputs(resolved: Resolved, before: Mapping[str, str]) -> dict[str, str]:
    """Find the input files and folders that have changed: `path (key)` by recipe key.

    Missing files are ignored: their readers report them, and the initial weights are not needed any more after the
    start of training.

    Args:
        resolved: The recipe.
        before: Earlier digests, as returned by `input_digests`.
    """
    now = input_digests(resolved)
    paths = dict(list_named_files(resolved.recipe.model_dump(exclude={"ablations"})))
    changed = [key for key in now if before.get(key, now[key]) != now[key]]
    return {key: f"{paths[key]} ({key})" if key in paths else key for key in changed}


def select_inputs(inputs: Mapping[str, str], sections: frozenset[str]) -> dict[str, str]:
    """Return the digests whose recipe key is in one of the given sections, such as `tasks`."""
    return {key: digest for key, digest in inputs.items() if key.partition(".")[0] in sections}


def combined_digest(inputs: Mapping[str, str]) -> str:
    """Combine the digests of all inputs into one SHA-256 digest."""
    text = "".join(f"{key} {digest}\n" for key, digest in sorted(inputs.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(path: Path) -> str | None:
    if path.is_file():
        return _of_file(path)
    if not path.is_dir():
        return None
    return combined_digest({str(file.relative_to(path)): _of_file(file) for file in _files(path)})


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
