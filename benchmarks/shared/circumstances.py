"""Conditions of a measurement: machine, versions and duration, stored with the figures of every benchmark."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def circumstances(began: float) -> dict[str, Any]:
    """Return the machine and the seconds since `began`, a value of `time.perf_counter`."""
    machine = {"system": platform.platform(terse=True), "cores": os.cpu_count(), "processor": processor()}
    return {"machine": machine, "seconds": time.perf_counter() - began}


def processor() -> str:
    """Return the name of the processor and its widest vector instructions, or the limit that PyTorch was given."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = facts.get("flags", "").split()
    widest = next((name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags), "no AVX2")
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    forced = f", limited to {limit}" if limit is not None else ""
    return f"{facts.get('model name', platform.machine())} ({widest}{forced})"
