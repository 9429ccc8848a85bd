"""Test that the recipe loads and its components work together: two updates of a small model."""

from pathlib import Path
from typing import Any

import whetstone

RECIPE = Path(__file__).parent / "recipe.yaml"
SMALL: dict[str, Any] = {
    "policy": {"tiny": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}},
    "supervised": {"steps": 2, "batch_size": 4},
    "rollout": {"group_size": 2, "max_new_tokens": 4},
    "reinforcement": {"steps": 2, "tasks_per_step": 2},
    "evaluation": {"episodes": 4},
}


def test_two_updates_are_made(tmp_path: Path) -> None:
    updates = []
    recipe = whetstone.load_recipe(RECIPE, **SMALL)
    run = whetstone.train(recipe, tmp_path / "run", on_metrics=lambda row: updates.append(row["step"]))
    assert updates
    assert run.after.episodes == 4
