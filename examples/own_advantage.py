"""Compare a custom advantage estimator of thirty lines with a baseline: same tasks, seed and budget.

python examples/own_advantage.py [FOLDER]
"""

import sys
from pathlib import Path
from typing import Any

import torch

import whetstone
from whetstone.algorithms import PerTrajectory
from whetstone.training import RunSummary


def by_rank(rewards: PerTrajectory, group: PerTrajectory) -> PerTrajectory:
    """Compute the rank of each trajectory in its group, from −1 (the worst) to 1; equal rewards have equal ranks."""
    advantages = torch.zeros_like(rewards)
    for g in group.unique():
        r = rewards[group == g]
        above = (r[:, None] > r[None, :]).sum(1) - (r[:, None] < r[None, :]).sum(1)
        advantages[group == g] = above.to(rewards) / max(1, len(r) - 1)
    return advantages


def main(folder: str = "runs/own-advantage", **sections: Any) -> dict[str, RunSummary]:
    """Train with both estimators and compare them."""
    recipe = whetstone.load_recipe("demo", **{"ablations": None, **sections})
    runs = {}
    for name, advantage in (("group_relative", "group_relative"), ("by_rank", by_rank)):
        runs[name] = whetstone.train(recipe.with_changes({"advantage": advantage}), Path(folder) / name)
    for name, run in runs.items():
        print(f"{name:<16} {run.before.success:.0%} → {run.after.success:.0%}")
    return runs


if __name__ == "__main__":
    main(*sys.argv[1:])
