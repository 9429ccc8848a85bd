"""Requests and the calls they ask for, in the files of the Berkeley function-calling leaderboard.

A question file has `{"id", "question": [[messages]], "function": [schemas]}` a line, and the file of possible answers
`{"id", "ground_truth": [{function: {parameter: [accepted values]}}]}`. A question without an answer there is one where
nothing is to be called. Goes with `environment: function_calls` and `reward: bfcl`.

Source: Patil et al., https://github.com/ShishirPatil/gorilla/tree/main/berkeley-function-call-leaderboard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import TaskError
from whetstone.tasks.jsonl import Endless, OnBadTask, read_tasks
from whetstone.tasks.splits import split
from whetstone.trajectory import Task


class FunctionCalls:
    """One turn a request; the expert makes the first of the calls that are accepted.

    Args:
        path: The questions.
        answers: The possible answers; null: nothing is to be called in any of them.
        seed: The order in which training requests come.
        held_out_share: The share kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.
        on_bad_task: `error`, or `skip` to leave bad lines out and count them.

    Raises:
        TaskError: A file is missing, empty or has a bad line.
    """

    def __init__(
        self,
        *,
        path: str,
        answers: str | None = None,
        seed: int = 0,
        held_out_share: float = 1.0,
        on_bad_task: OnBadTask = "error",
    ) -> None:
        truths = _truths(Path(answers)) if answers is not None else {}

        def parse(row: Mapping[str, Any], number: int) -> Task:
            return _parsed(row, truths)

        tasks, self.skipped = read_tasks(Path(path), parse, on_bad_task=on_bad_task)
        training, self._held_out = (tasks, tasks) if held_out_share == 1.0 else split(tasks, held_out_share, where=path)
        self._endless = Endless(training, seed=seed)

    @property
    def training_tasks(self) -> int:
        """How many there are to train on."""
        return len(self._endless.tasks)

    def task(self, index: int) -> Task:
        """Each training request once an epoch, every epoch in another order."""
        return self._endless[index]

    def held_out(self, count: int) -> Sequence[Task]:
        """In the order of the file."""
        return self._held_out[:count]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The calls, with the first accepted value of each parameter that cannot be left out."""
        calls = []
        for truth in task.private["possible_answer"]:
            ((name, accepted),) = truth.items()
            given = {key: _first(values) for key, values in accepted.items() if "" not in values}
            calls.append(ToolCall(name.replace(".", "_"), json.dumps(given)))
        return assistant("", *calls) if calls else assistant("None of the functions does that.")


def _first(values: Sequence[Any]) -> Any:
    value = values[0]
    return {key: _first(below) for key, below in value.items() if "" not in below} if isinstance(value, dict) else value


def _truths(path: Path) -> dict[str, Any]:
    found = {}
    if not path.is_file():
        raise TaskError(f"{path}: no such file of possible answers")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
                found[str(row["id"])] = row["ground_truth"]
            except (ValueError, KeyError, TypeError) as error:
                raise TaskError(f"{path}:{number}  {type(error).__name__}: {error}") from None
    return found


def _parsed(row: Mapping[str, Any], truths: Mapping[str, Any]) -> Task:
    id, functions = str(row["id"]), row["function"]
    turns = row["question"]
    messages = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], list) else turns
    if not isinstance(messages, list) or not isinstance(functions, list):
        raise ValueError("`question` is a list of messages and `function` a list of schemas")
    prompt = "\n".join(str(message["content"]) for message in messages)
    private = {"functions": functions, "possible_answer": truths.get(id, [])}
    kind = id.rsplit("_", 1)[0]
    return Task(id, prompt, private, {"kind": kind})
