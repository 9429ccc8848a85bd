"""An environment of the package `verifiers`, trained through its own harness, which asks its model at an address.

python examples/verifiers_agent.py PYTHON [RUN_DIR]

PYTHON is the interpreter that has the package: python -m venv V && V/bin/pip install verifiers, and it is V/bin/python.
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
    """The tasks of the taskset, and how they are done."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """One call, and the number that came back."""
        results = [message.text for message in conversation if message.role == "tool"]
        if results:
            return assistant(results[-1])
        return assistant("", ToolCall("calculate", json.dumps({"expression": task.prompt.split()[1]})))


def main(python: str, run_dir: str = "runs/verifiers-agent", **sections: Any) -> RunSummary:
    """Show the model how, then let it find out."""
    os.environ["PYTHONPATH"] = str(HERE)  # where the taskset is found
    there = {"taskset": "calculating_taskset", "python": python}
    changed = {
        "tasks": {"source": "verifiers_agent:Shown", **there, "env": {}, "held_out_fraction": 0.33},
        "environment": {"name": "verifiers_harness", **there},
        "reward": "verdict",
    }
    recipe = whetstone.load_recipe(HERE / "calculating.yaml", ["tasks.kinds=null", "tasks.digits=null"])
    run = whetstone.train(recipe.with_changes(**changed).with_changes(**sections), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
