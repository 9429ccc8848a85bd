"""Files of a run directory as the viewer opens them: regular files inside the directory, up to a size."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from whetstone.json_lines import open_regular_file, parse_object

MAX_JSON_BYTES = 16 * 2**20
"""Maximum size of a file that is read at once."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Opens files of one run directory, and refuses files outside of it.

    Args:
        folder: The run directory.
        follow_symlinks: Whether a symbolic link may lead out of it.
    """

    folder: Path
    follow_symlinks: bool = False

    def open(self, path: Path) -> BinaryIO:
        """Open a file of the run for reading.

        Raises:
            OSError: The file is missing, not a regular file, or outside of the run directory.
        """
        if not self.follow_symlinks:
            place, root = os.path.realpath(path), os.path.realpath(self.folder)
            if os.path.commonpath((place, root)) != root:
                problem = "leads out of the run directory; `whetstone view --follow-symlinks` reads it"
                raise OSError(errno.EPERM, problem, str(path))
        return open_regular_file(path)

    def read(self, path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Return the content of a file of the run.

        Raises:
            OSError: See `open`; or the file is larger than `max_bytes`.
        """
        with self.open(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
        return content

    def read_object(self, path: Path) -> dict[str, Any]:
        """Return the JSON object in a file; empty if the file is missing, incomplete or not a JSON object."""
        try:
            return parse_object(self.read(path))
        except (OSError, ValueError):
            return {}
