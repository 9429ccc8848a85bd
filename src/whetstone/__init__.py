"""Whetstone: reinforcement learning for language-model agents that use tools over many turns.

import whetstone

recipe = whetstone.load_recipe("demo", reinforcement={"steps": 30})
run = whetstone.train(recipe, "runs/first")
print(f"{run.before.success:.0%} → {run.after.success:.0%}")
"""

import os
from typing import TYPE_CHECKING

# Helpers of a product that wait awake without end take the cores of whoever else is busy: on a full machine products
# and attention take two to three times as long. Those that sleep at once are woken for each of a small model's many
# small products, which takes longer than the product. So they wait awake for a few microseconds, then sleep.
# Read when PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# Usage statistics and error reports of dependencies, off unless the environment turns them on. Read when the package is
# loaded; child processes, such as servers of models, inherit them.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

from whetstone import window  # as a module, which is what `whetstone.window` is

if TYPE_CHECKING:
    from whetstone.errors import InfrastructureError, ToolError
    from whetstone.recipe.resolved import load_recipe
    from whetstone.recipe.settings import Recipe
    from whetstone.serving.client import episode
    from whetstone.training.agent_evaluation import evaluate
    from whetstone.training.run import train
    from whetstone.trajectory import Score, Task, Trajectory

__getattr__, __dir__ = window.window(__name__)

__all__ = [
    "InfrastructureError",
    "Recipe",
    "Score",
    "Task",
    "ToolError",
    "Trajectory",
    "episode",
    "evaluate",
    "load_recipe",
    "train",
]
