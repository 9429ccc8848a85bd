"""Files of the states and sampler weights that clients of the Tinker API save; they outlive the server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from whetstone.atomic_write import convert_save_errors
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import RecipeError, SaveError, did_you_mean
from whetstone.policies import Policy
from whetstone.training.evaluation_loop import weights_digest

_PATH = re.compile(r"tinker://([0-9a-f]+:train:\d+)/(weights|sampler_weights)/([A-Za-z0-9][\w.-]*)")


class StateFiles:
    """Saved states in a folder: `tinker://SESSION:train:N/weights/NAME` is `SESSION-train-N/weights/NAME.pt`.

    Args:
        folder: Folder of the files; created if it does not exist.
        base: Base model of all states. A file stores the digest of its weights.

    Raises:
        RecipeError: If the folder cannot be created.
    """

    def __init__(self, folder: Path, base: Policy) -> None:
        self.folder, self._base, self._digest = folder, base, ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecipeError(f"--tinker-states {folder}: cannot be created: {error.strerror or error}") from None

    def has_state(self, path: str, kind: str) -> bool:
        """Return whether a path is that of a saved `weights` or `sampler_weights`."""
        match = _PATH.fullmatch(path)
        return match is not None and match[2] == kind and self._file(path).is_file()

    def check_name(self, path: str) -> None:
        """Check that a path can be saved.

        Raises:
            RefusedError: If its name has characters that are not allowed in a file name on all platforms.
        """
        if not _PATH.fullmatch(path):
            name = path.partition("weights/")[2]
            raise RefusedError(f"save: the name {name[:80]!r} must have letters, digits, '.', '_' and '-' only")

    def save(self, path: str, state: Mapping[str, Any]) -> None:
        """Replace the file of a path atomically.

        Raises:
            RefusedError: If the file cannot be written; an earlier state of that path is unchanged.
        """
        file = self._file(path)
        aside = file.with_name(f".{file.name}.partial")
        try:
            with convert_save_errors(file, aside):
                file.parent.mkdir(parents=True, exist_ok=True)
                with open(aside, "wb") as out:
                    torch.save({**state, "base": self._base_digest()}, out)
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(aside, file)
        except SaveError as error:
            raise RefusedError(f"save: {error}", status=507) from None

    def load(self, path: str, place: str, *kinds: str) -> dict[str, Any]:
        """Read the state of a path.

        Args:
            path: Path as the client received it.
            place: Call that the message of an error names.
            kinds: Allowed kinds, `weights` or `sampler_weights`.

        Raises:
            RefusedError: If no such state is saved, the file is damaged, or it belongs to another base model.
        """
        if not any(self.has_state(path, kind) for kind in kinds):
            near = did_you_mean(path, [each for each in self.list_paths() if _kind(each) in kinds])
            raise RefusedError(f"{place}: {path[:120]} is unknown{near}", status=404)
        try:
            state: dict[str, Any] = torch.load(self._file(path), weights_only=True)
        except Exception as error:  # every kind of damage has its own exception
            reason = (str(error) or type(error).__name__).splitlines()[0][:120]
            raise RefusedError(f"{place}: {path} is damaged ({reason}); save it again") from None
        if state.pop("base", None) != self._base_digest():
            raise RefusedError(f"{place}: {path} belongs to another base model than the served one")
        return state

    def list_paths(self) -> list[str]:
        """Return the paths of all saved states, in the order of their names."""
        files = self.folder.glob("*-train-*/*/*.pt")
        paths = [f"tinker://{f.parts[-3].replace('-', ':')}/{f.parts[-2]}/{f.name.removesuffix('.pt')}" for f in files]
        return sorted(path for path in paths if _PATH.fullmatch(path))

    def _file(self, path: str) -> Path:
        match = _PATH.fullmatch(path)
        assert match is not None, path
        return self.folder / match[1].replace(":", "-") / match[2] / f"{match[3]}.pt"

    def _base_digest(self) -> str:
        self._digest = self._digest or weights_digest(self._base)
        return self._digest


def _kind(path: str) -> str:
    return path.split("/")[3]
