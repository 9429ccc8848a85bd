"""Task source of HumanEval, Python functions to complete with tests, from the published JSON lines.

Use it with `reward: unit_tests`, which runs code and tests in separate sandboxes; with `ask_for: tests` use
`reward: written_tests`.

Source: Chen et al. 2021, arXiv:2107.03374.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.readers import OnBadRow
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

_ASK = "Complete this Python function. Answer with the whole function in one fenced block.\n\n```python\n{}\n```"

_ASK_FOR_TESTS = (
    "Write tests of this Python function: assertions that hold for every right implementation and fail for wrong ones. "
    "Answer with one fenced block that calls `{}` and does not define it.\n\n```python\n{}\n```"
)


class HumanEval(ListedTasks):
    """Task source of HumanEval; the expert answers with the published solution or tests.

    Args:
        path: The file `HumanEval.jsonl`, or its folder.
        ask_for: `code` that passes the published tests, or `tests` of the function.
        seed: Determines the order of training problems.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If the file is missing, empty or has a bad line.
    """

    def __init__(
        self,
        *,
        path: str,
        ask_for: Literal["code", "tests"] = "code",
        seed: int = 0,
        held_out_fraction: float = 1.0,
        on_bad_row: OnBadRow = "stop",
    ) -> None:
        self.ask_for = ask_for
        file = Path(path) / "HumanEval.jsonl" if Path(path).is_dir() else Path(path)
        tasks, self.skipped = read_tasks(file, partial(function_task, ask_for=ask_for), on_bad_row=on_bad_row)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=str(file)), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the published solution, or the published tests, in a fenced block."""
        if self.ask_for == "tests":
            return assistant(f"```python\n{_rewrite_tests(task.private['test'], task.private['entry_point'])}\n```")
        return assistant(f"```python\n{task.private['prelude']}{task.private['solution']}\n```")


def _rewrite_tests(test: str, entry: str) -> str:
    """Return the published tests, a function `check(candidate)`, as a test function that calls `entry`."""
    tree = ast.parse(test)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            node.name, node.args.args = f"test_{entry}", []
            node.body.insert(0, ast.parse(f"candidate = {entry}").body[0])
    return ast.unparse(tree)


def function_task(row: Mapping[str, Any], number: int, *, ask_for: Literal["code", "tests"] = "code") -> Task:
    """Create the task of a row: a function to complete, or to test."""
    private = {
        "entry_point": str(row["entry_point"]),
        "test": str(row["test"]),
        "prelude": str(row["prompt"]),
        "solution": str(row["canonical_solution"]),
    }
    ask = _ASK.format(row["prompt"])
    if ask_for == "tests":
        ask = _ASK_FOR_TESTS.format(row["entry_point"], row["prompt"].rstrip())
    return Task(str(row["task_id"]), ask, private, {"kind": "function" if ask_for == "code" else "tests"})
