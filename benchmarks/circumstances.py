"""Where was it measured, and how long did that take? What every benchmark tells beside its figures."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.checkpoint import latest_checkpoint


def circumstances(began: float) -> dict[str, Any]:
    """Machine and seconds since `began`, as `time.perf_counter` gave it."""
    machine = {"system": platform.platform(terse=True), "cores": os.cpu_count()}
    return {"machine": machine, "seconds": time.perf_counter() - began}


def warmed_up(seed: int, folder: Path, *changes: str) -> Path:
    """A checkpoint of the demo's policy behind its warm-up, from which methods are compared."""
    without = [f"{key}=null" for key in ("training", "rollout", "objective", "advantage", "ablations")]
    overrides = [f"seed={seed}", "evaluation.episodes=10", *without, *changes]
    train(load_recipe("demo", overrides), folder, progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint
