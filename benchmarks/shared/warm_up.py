"""Initial policy of learning benchmarks: the demo's policy after its warm-up, the same for all sides."""

from __future__ import annotations

from pathlib import Path

from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train


def train_warm_up(seed: int, folder: Path, *changes: str) -> Path:
    """Return the checkpoint of the demo's policy after its warm-up; train or resume it if it is unfinished."""
    without = [f"{key}=null" for key in ("reinforcement", "rollout", "objective", "advantage", "ablations")]
    # a constant rate leaves room for improvement; stored results start from it
    constant = "supervised.decay_fraction=0"
    overrides = [f"seed={seed}", "evaluation.episodes=10", constant, *without, *changes]
    is_started = (folder / "recipe.yaml").is_file()
    train(load_recipe("demo", overrides), folder, resume=is_started, progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint
