"""The leaderboard's questions about what was said before, and the conversations in which it was said.

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
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

Backend = Literal["kv", "vector", "rec_sum"]


_LOOK = {"kv": "archival_memory_list_keys", "vector": "archival_memory_retrieve_all", "rec_sum": "memory_retrieve"}


class MemoryTasks(ListedTasks):
    """One task a question, or a conversation; the expert looks into the memory and answers, or notes what is said.

    Args:
        backend: `kv`: pairs of keys and values, found by words; `vector`: texts by likeness; `rec_sum`: one text.
        part: `questions`, or the `conversations` they are about, each scenario's in their order.
        path: The folder with the questions, `possible_answer/` and `memory_prereq_conversation/`; empty: that of the
            package `bfcl-eval`.
        seed: The order in which training tasks come.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.

    Raises:
        TaskError: A file is missing or has a bad line.
        RecipeError: `path` is empty and the package is not installed.
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
        said: dict[str, list[Mapping[str, Any]]] = {}
        for scenario in sorted({str(row["scenario"]) for row in questions}):
            said[scenario] = _rows(folder / "memory_prereq_conversation" / f"memory_{scenario}.json")

        def question(row: Mapping[str, Any], number: int) -> Task:
            scenario, id = str(row["scenario"]), str(row["id"])
            heard = [text for each in said[scenario] for text in _words(each)]
            private = _private(row, backend, number=len(said[scenario]), heard=heard)
            return _task(row, backend, {**private, "answers": [str(one) for one in answers[id]]})

        if part == "questions":
            tasks, _ = read_tasks(folder / name, question)
        else:
            asked = {
                scenario: [answers[str(q["id"])] for q in questions if q["scenario"] == scenario] for scenario in said
            }
            tasks = []
            for scenario, conversations in said.items():
                heard: list[str] = []
                for number, row in enumerate(conversations):
                    private = _private(row, backend, number=number, heard=tuple(heard))
                    tasks.append(_task(row, backend, {**private, "asked": asked[scenario]}))
                    heard += _words(row)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=name), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Of a question, a look and the accepted answer; of a conversation, each thing that is said, word for word."""
        private, last = task.private, conversation[-1]
        if last.role == "tool":
            said = (
                json.dumps({"answer": private["answers"][0], "context": "memory"}) if "answers" in private else "Noted."
            )
            return assistant(said)
        if "answers" in private:
            return assistant("", ToolCall(_LOOK[private["backend"]], "{}"))
        turn = sum(message.role == "user" for message in conversation)
        name, arguments = _noted(private["backend"], f"{task.tags['scenario']}_{private['number']}_{turn}", last.text)
        return assistant("", ToolCall(name, json.dumps(arguments)))


def _noted(backend: str, key: str, text: str) -> tuple[str, dict[str, str]]:
    if backend == "kv":
        return "archival_memory_add", {"key": key, "value": text}
    return ("archival_memory_add" if backend == "vector" else "memory_append"), {"text": text}


def _private(row: Mapping[str, Any], backend: str, *, number: int, heard: Sequence[str]) -> dict[str, Any]:
    """What both kinds have; `number` conversations came before, in which this was `heard`."""
    common = {"question": row["question"], "scenario": str(row["scenario"]), "backend": backend}
    return {**common, "number": number, "heard": list(heard)}


def _task(row: Mapping[str, Any], backend: str, private: Mapping[str, Any]) -> Task:
    id = str(row["id"]).replace("memory", f"memory_{backend}", 1)
    tags = {"kind": f"memory_{backend}", "scenario": str(row["scenario"])}
    return Task(id, "\n".join(str(one["content"]) for one in row["question"][0]), private, tags)


def _words(row: Mapping[str, Any]) -> list[str]:
    return [str(one["content"]) for turn in row["question"] for one in turn]


def _rows(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        raise TaskError(f"{path}: no such file of the leaderboard's memory questions")
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from None
