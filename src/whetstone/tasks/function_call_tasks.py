"""Task source of single-turn function calls, in the files of the Berkeley Function Calling Leaderboard (BFCL).

A question file has `{"id", "question": [[messages]], "function": [schemas]}` per line, and the file of possible answers
`{"id", "ground_truth": [{function: {parameter: [accepted values]}}]}`. Use it with `environment: function_calls` and
`reward: bfcl`.

In the categories of Java and JavaScript, a call contains every value as a text in that language (`literals.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.literals import LANGUAGES, format_literal
from whetstone.tasks.readers import OnBadRow
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task


class FunctionCalls(ListedTasks):
    """Task source of BFCL's single-turn requests.

    The expert makes the first accepted calls.

    Args:
        path: The questions.
        answers: The possible answers; null: no question requires a call, except that those of `relevance` require any.
        seed: Determines the order of training requests.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If a file is missing, empty or has a bad line, or a question lacks a possible answer.
    """

    def __init__(
        self,
        *,
        path: str,
        answers: str | None = None,
        seed: int = 0,
        held_out_fraction: float = 1.0,
        on_bad_row: OnBadRow = "stop",
    ) -> None:
        truths = _truths(Path(answers)) if answers is not None else None

        def parse(row: Mapping[str, Any], number: int) -> Task:
            return _parse_row(row, truths)

        tasks, self.skipped = read_tasks(Path(path), parse, on_bad_row=on_bad_row)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=path), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the calls with the first accepted value of each required parameter.

        A few of the leaderboard's answers violate its own rules: a required parameter is missing, or has no accepted
        value. The nearest possible call is returned for these.

        Raises:
            TaskError: If any call is accepted, so that there is no answer.
        """
        possible = task.private["possible_answer"]
        if possible is None:
            raise TaskError(f"task {task.id}: there is no expert answer, since any call is accepted")
        parameters = {str(one["name"]): one.get("parameters", {}) for one in task.private["functions"]}
        language = task.private.get("language", "")
        calls = [
            _call(name, accepted, parameters.get(name, {}), language)
            for truth in possible
            for name, accepted in truth.items()
        ]
        return assistant("", *calls) if calls else assistant("None of the functions does that.")


def _call(name: str, accepted: Mapping[str, Sequence[Any]], parameters: Mapping[str, Any], language: str) -> ToolCall:
    """Return a call with the first accepted value of each required parameter."""
    required, schemas = parameters.get("required", ()), parameters.get("properties", {})
    arguments = {
        key: _first(values) for key, values in accepted.items() if values and ("" not in values or key in required)
    }
    if language:
        for key, value in arguments.items():
            schema = schemas.get(key, {})
            elements = str(schema.get("items", {}).get("type", ""))
            arguments[key] = format_literal(language, value, str(schema.get("type", "")), elements)
    return ToolCall(name.replace(".", "_"), json.dumps(arguments))


def _first(values: Sequence[Any]) -> Any:
    """Return the first accepted value; of a mapping, the first of each required key."""
    value = next((value for value in values if value != ""), values[0])
    return [_first_of_each(one) for one in value] if isinstance(value, list) else _first_of_each(value)


def _first_of_each(value: Any) -> Any:
    """Return a mapping with the first accepted value of each required key.

    Other values as they are.
    """
    if not isinstance(value, dict):
        return value
    below = {key: values if isinstance(values, list) else [values] for key, values in value.items()}
    return {key: values[0] for key, values in below.items() if values and "" not in values}


def _truths(path: Path) -> dict[str, Any]:
    """Read the possible answers by id.

    Raises:
        TaskError: If the file is missing or has a bad line.
    """
    truths = {}
    if not path.is_file():
        raise TaskError(f"{path}: no such file; set answers to the file of possible answers, or to null")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
                truths[str(row["id"])] = row["ground_truth"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise TaskError(f"{path}:{number}  {type(error).__name__}: {error}") from None
    return truths


def _parse_row(row: Mapping[str, Any], truths: Mapping[str, Any] | None) -> Task:
    """Create the task of a question.

    Raises:
        ValueError: If the question is invalid, or has no possible answer.
    """
    id, functions = str(row["id"]), row["function"]
    if not isinstance(functions, list):
        raise ValueError("`function` must be a list of schemas")
    messages = _messages(row["question"])
    kind = id.rsplit("_", 1)[0]
    private: dict[str, Any] = {"functions": functions, "possible_answer": _possible(id, kind, truths)}
    if language := next((word for word in kind.split("_") if word in LANGUAGES), ""):
        private["language"] = language
    if [message["role"] for message in messages] != ["user"]:
        private["messages"] = messages
    return Task(id, "\n".join(message["content"] for message in messages), private, {"kind": kind})


def _possible(id: str, kind: str, truths: Mapping[str, Any] | None) -> Any:
    """Return the accepted calls of a question.

    An empty list if there must be no call, None if any call is accepted.

    Raises:
        ValueError: If the file of possible answers lacks the question.
    """
    if truths is not None and id in truths:
        return truths[id]
    words = kind.split("_")
    if "relevance" in words:
        return None
    if truths is not None and "irrelevance" not in words:
        raise ValueError(
            f"{id}: the file of possible answers has no line for it, and its category is not `irrelevance`"
        )
    return []


def _messages(question: Any) -> list[dict[str, str]]:
    """Return the messages of a question; consecutive ones of the same role are joined.

    Raises:
        ValueError: If the question is not one list of messages with known roles.
    """
    turns = question if isinstance(question, list) and question and isinstance(question[0], list) else [question]
    if len(turns) != 1 or not isinstance(turns[0], list) or not turns[0]:
        raise ValueError("`question` must be a list of one list of messages")
    messages: list[dict[str, str]] = []
    for message in turns[0]:
        role, content = message["role"], str(message["content"])
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"the role of a message must be system, user or assistant, got {role}")
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{content}"
        else:
            messages.append({"role": role, "content": content})
    return messages
