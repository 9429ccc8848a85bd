"""Tasks of BFCL's agent memory: questions about earlier conversations, and these conversations.

Source: Patil et al. 2025, the Berkeley Function Calling Leaderboard (V4, memory); the files of `bfcl-eval`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.bfcl.package import data_folder
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

Backend = Literal["kv", "vector", "rec_sum"]
"""Kind of an agent memory."""


_LOOK = {"kv": "archival_memory_list_keys", "vector": "archival_memory_retrieve_all", "rec_sum": "memory_retrieve"}
"""Name of the tool that returns the memory's content, by backend."""


class MemoryTasks(ListedTasks):
    """Task source of BFCL's agent memory, one task per question or conversation.

    The expert reads the memory and answers a question, or stores each message of a conversation.

    Args:
        backend: `kv`: pairs of keys and values, found by words; `vector`: texts by similarity; `rec_sum`: one text.
        part: `questions`, or the `conversations` that they are about, in the order of each scenario.
        path: The folder with the questions, `possible_answer/` and `memory_prereq_conversation/`; empty: that of the
            package `bfcl-eval`.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.

    Raises:
        TaskError: If a file is missing or has a bad line.
        RecipeError: If `path` is empty and the package is not installed.
    """

    def __init__(
        self,
        *,
        backend: Backend = "kv",
        part: Literal["questions", "conversations"] = "questions",
        path: str = "",
        seed: int = 0,
        held_out_fraction: float = 1.0,
    ) -> None:
        folder = Path(path) if path else data_folder()
        name = "BFCL_v4_memory.json"
        answers = {str(row["id"]): row["ground_truth"] for row in _rows(folder / "possible_answer" / name)}
        questions = _rows(folder / name)
        conversations_by_scenario: dict[str, list[Mapping[str, Any]]] = {}
        for scenario in sorted({str(row["scenario"]) for row in questions}):
            conversations_by_scenario[scenario] = _rows(
                folder / "memory_prereq_conversation" / f"memory_{scenario}.json"
            )

        def question(row: Mapping[str, Any], number: int) -> Task:
            scenario, id = str(row["scenario"]), str(row["id"])
            texts = [text for each in conversations_by_scenario[scenario] for text in _words(each)]
            private = _private(row, backend, number=len(conversations_by_scenario[scenario]), texts=texts)
            return _task(row, backend, {**private, "answers": [str(one) for one in answers[id]]})

        if part == "questions":
            tasks, _ = read_tasks(folder / name, question)
        else:
            answers_by_scenario = {
                scenario: [answers[str(q["id"])] for q in questions if q["scenario"] == scenario]
                for scenario in conversations_by_scenario
            }
            tasks = []
            for scenario, conversations in conversations_by_scenario.items():
                texts: list[str] = []
                for number, row in enumerate(conversations):
                    private = _private(row, backend, number=number, texts=tuple(texts))
                    tasks.append(_task(row, backend, {**private, "asked": answers_by_scenario[scenario]}))
                    texts += _words(row)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=name), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the expert's next action.

        For a question, the expert reads the memory and answers; in a conversation, it stores each message verbatim.
        """
        private, last = task.private, conversation[-1]
        if last.role == "tool":
            answer = (
                json.dumps({"answer": private["answers"][0], "context": "memory"}) if "answers" in private else "Noted."
            )
            return assistant(answer)
        if "answers" in private:
            return assistant("", ToolCall(_LOOK[private["backend"]], "{}"))
        turn = sum(message.role == "user" for message in conversation)
        name, arguments = _storing_call(
            private["backend"], f"{task.tags['scenario']}_{private['number']}_{turn}", last.text
        )
        return assistant("", ToolCall(name, json.dumps(arguments)))


def _storing_call(backend: str, key: str, text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the arguments of the tool that stores a text."""
    if backend == "kv":
        return "archival_memory_add", {"key": key, "value": text}
    return ("archival_memory_add" if backend == "vector" else "memory_append"), {"text": text}


def _private(row: Mapping[str, Any], backend: str, *, number: int, texts: Sequence[str]) -> dict[str, Any]:
    """Return the private data that questions and conversations have in common.

    Args:
        row: Line of the benchmark's file.
        backend: Kind of the memory.
        number: Number of preceding conversations of the scenario.
        texts: Messages of the preceding conversations.
    """
    common = {"question": row["question"], "scenario": str(row["scenario"]), "backend": backend}
    return {**common, "number": number, "heard": list(texts)}


def _task(row: Mapping[str, Any], backend: str, private: Mapping[str, Any]) -> Task:
    """Create the task of a question or a conversation of the benchmark."""
    id = str(row["id"]).replace("memory", f"memory_{backend}", 1)
    tags = {"kind": f"memory_{backend}", "scenario": str(row["scenario"])}
    return Task(id, "\n".join(str(one["content"]) for one in row["question"][0]), private, tags)


def _words(row: Mapping[str, Any]) -> list[str]:
    """Return the user's messages of all turns of a conversation."""
    return [str(one["content"]) for turn in row["question"] for one in turn]


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """Read the lines of a JSON lines file.

    Raises:
        TaskError: If the file is missing or has a bad line.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; the memory questions are part of the package bfcl-eval")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from None
