"""Where is kept what can be made again: indexes, models that were fetched and converted?"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's, by the habits of the platform; XDG_CACHE_HOME goes before them."""
    home = Path.home()
    usual = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "whetstone"
