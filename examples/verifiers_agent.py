"""Train on an environment of the package `verifiers` with its own harness, which calls the policy over HTTP.

python examples/verifiers_agent.py PYTHON [RUN_DIR]

PYTHON is an interpreter with the package: python -m venv V && V/bin/pip install verifiers gives V/bin/python.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import whetstone
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.remote.verifiers import VerifiersTasks
from whetstone.training import RunSummary
from whetstone.trajectory import Task

HERE = Path(__file__).parent


class Shown(VerifiersTasks):
    """Tasks of the taskset, with an expert."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Call the tool, then answer with its result."""
        results = [message.text for message in conversation if message.role == "tool"]
        if results:
            return assistant(results[-1])
        return assistant("", ToolCall("calculate", json.dumps({"expression": task.prompt.split()[1]})))


def main(python: str, run_dir: str = "runs/verifiers-agent", **sections: Any) -> RunSummary:
    """Train with a warm-up on demonstrations, then reinforcement."""
    os.environ["PYTHONPATH"] = str(HERE)  # folder of the taskset
    taskset = {"taskset": "calculating_taskset", "python": python}
    changed = {
        "tasks": {"source": "verifiers_agent:Shown", **taskset, "env": {}, "held_out_fraction": 0.33},
        "environment": {"name": "verifiers_harness", **taskset},
        "reward": "verdict",
    }
    recipe = whetstone.load_recipe(HERE / "calculating.yaml", ["tasks.kinds=null", "tasks.digits=null"])
    run = whetstone.train(recipe.with_changes(**changed).with_changes(**sections), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
