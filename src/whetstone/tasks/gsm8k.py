"""Task source of GSM8K, grade-school problems in words, from the published JSON lines.

A solution marks each calculation as `<<48/2=24>>` and ends with `#### 72`. The marks are gold calculator calls and
serve as demonstrations.

Note:
    Marks are written by people (`<<.5*100=50>>`, `<<5 * 3=15>>`, `<<1,200/2=600>>`) and some are wrong. The expert
    replays them; the reward decides whether a demonstration is trained on.

Source: Cobbe et al. 2021, arXiv:2110.14168.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.readers import OnBadRow
from whetstone.trajectory import Task

_MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


class GSM8K(ListedTasks):
    """Task source of GSM8K: trains on `train.jsonl` and holds out `test.jsonl`.

    Args:
        path: The folder with both files.
        seed: Determines the order of training problems.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If the folder or a file is missing, empty or has a bad line.
    """

    def __init__(self, *, path: str, seed: int = 0, on_bad_row: OnBadRow = "stop") -> None:
        folder = Path(path)
        if not folder.is_dir():
            raise TaskError(f"{folder}: no such folder; set path to a folder with train.jsonl and test.jsonl")
        training, bad_training = read_tasks(folder / "train.jsonl", problem_parser("train"), on_bad_row=on_bad_row)
        held_out, bad_test = read_tasks(folder / "test.jsonl", problem_parser("test"), on_bad_row=on_bad_row)
        self.skipped = bad_training + bad_test
        super().__init__(training, held_out, seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next marked calculation as a call, then the answer.

        Without tools, the answer.
        """
        calls: Sequence[str] = task.private["calls"]
        done = sum(message.role == "tool" for message in conversation)
        if tools and done < len(calls):
            (tool,) = tools
            return assistant("", ToolCall(tool.name, json.dumps({tool.only_text_parameter: calls[done]})))
        return assistant(str(task.private["answer"]))


def problem_parser(split: str) -> Callable[[Mapping[str, Any], int], Task]:
    """Return the parser of rows of a split.

    Args:
        split: Name of the split, part of the task ids.

    Returns:
        (row, number) → task; raises a ValueError if the row is not a problem of GSM8K.
    """

    def parse(row: Mapping[str, Any], number: int) -> Task:
        question, solution = row["question"], row["answer"]
        if not isinstance(question, str) or not isinstance(solution, str):
            raise ValueError("`question` and `answer` must be texts")
        words = solution.rpartition("####")[2].split() if "####" in solution else []
        if len(words) != 1:
            raise ValueError("the solution does not end with `#### answer`")
        calls = tuple(expression.replace(",", "").strip() for expression, _ in _MARK.findall(solution))
        answer = words[0].replace(",", "")
        tags = {"kind": f"{min(len(calls), 6)}{'+' if len(calls) > 5 else ''} calculations"}
        return Task(f"gsm8k/{split}/{number}", question, {"answer": answer, "calls": calls}, tags)

    return parse
