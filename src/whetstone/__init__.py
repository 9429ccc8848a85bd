"""Whetstone: reinforcement learning for language-model agents that use tools over many turns.

import whetstone

recipe = whetstone.load_recipe("demo", reinforcement={"steps": 30})
run = whetstone.train(recipe, "runs/first")
print(f"{run.before.success:.0%} → {run.after.success:.0%}")
"""

import os
from typing import TYPE_CHECKING

# OpenMP threads that spin without limit take cores from other processes: on a busy machine matrix products and
# attention take two to three times as long. Threads that sleep immediately must be woken for each of the many small
# products of a small model, which takes longer than the product. So they spin for a few microseconds, then sleep.
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

from whetstone import (  # as modules, which is what these names are
    lazy_imports,
    renamed_modules,
)

if TYPE_CHECKING:
    from whetstone.errors import InfrastructureError as InfrastructureError, ToolError as ToolError
    from whetstone.recipe.resolved import load_recipe as load_recipe
    from whetstone.recipe.settings import Recipe as Recipe
    from whetstone.serving.client import episode as episode
    from whetstone.training.agent_evaluation import evaluate as evaluate
    from whetstone.training.run import train as train
    from whetstone.trajectory import Score as Score, Task as Task, Trajectory as Trajectory

__getattr__, __dir__ = lazy_imports.export_lazily(__name__)
renamed_modules.install_finder()
