"""What do benchmarks of learning begin with? The demo's policy behind its warm-up, the same for all sides."""

from __future__ import annotations

from pathlib import Path

from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train


def warmed_up(seed: int, folder: Path, *changes: str) -> Path:
    """A checkpoint of the demo's policy behind its warm-up, from which methods are compared; goes on
    where it stopped."""
    without = [f"{key}=null" for key in ("reinforcement", "rollout", "objective", "advantage", "ablations")]
    # a constant rate leaves room for improvement, and stored results were measured from it
    constant = "supervised.decay_fraction=0"
    overrides = [f"seed={seed}", "evaluation.episodes=10", constant, *without, *changes]
    begun = (folder / "recipe.yaml").is_file()
    train(load_recipe("demo", overrides), folder, resume=begun, progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint
