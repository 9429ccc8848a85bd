"""Where was it measured, and how long did that take? What every benchmark tells beside its figures."""

from __future__ import annotations

import os
import platform
import time
from typing import Any


def circumstances(began: float) -> dict[str, Any]:
    """Machine and seconds since `began`, as `time.perf_counter` gave it."""
    machine = {"system": platform.platform(terse=True), "cores": os.cpu_count()}
    return {"machine": machine, "seconds": time.perf_counter() - began}
