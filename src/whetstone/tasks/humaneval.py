"""Task source of HumanEval, Python functions to complete with tests, from the published JSON lines.

Use it with `reward: unit_tests`, which runs code and tests in separate sandboxes.

Source: Chen et al. 2021, arXiv:2107.03374.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.readers import OnBadRow
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

_ASK = "Complete this Python function. Answer with the whole function in one fenced block.\n\n```python\n{}\n```"


class HumanEval(ListedTasks):
    """Task source of HumanEval; the expert answers with the published solution.

    Args:
        path: The file `HumanEval.jsonl`, or its folder.
        seed: Determines the order of training problems.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If the file is missing, empty or has a bad line.
    """

    def __init__(
        self, *, path: str, seed: int = 0, held_out_fraction: float = 1.0, on_bad_row: OnBadRow = "stop"
    ) -> None:
        file = Path(path) / "HumanEval.jsonl" if Path(path).is_dir() else Path(path)
        tasks, self.skipped = read_tasks(file, function_task, on_bad_row=on_bad_row)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=str(file)), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the published solution in a fenced block."""
        return assistant(f"```python\n{task.private['prelude']}{task.private['solution']}\n```")


def function_task(row: Mapping[str, Any], number: int) -> Task:
    """Create the task of a row: a function to complete."""
    private = {
        "entry_point": str(row["entry_point"]),
        "test": str(row["test"]),
        "prelude": str(row["prompt"]),
        "solution": str(row["canonical_solution"]),
    }
    return Task(str(row["task_id"]), _ASK.format(row["prompt"]), private, {"kind": "function"})
