"""Folder for data that can be recreated: search indexes, downloaded and converted models."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return Whetstone's cache folder: in `XDG_CACHE_HOME`, or the default of the platform."""
    home = Path.home()
    usual = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "whetstone"
