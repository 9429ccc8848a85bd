"""Tasks of BFCL's multi-turn conversations: the user's messages and the gold calls of each turn.

Source: Patil et al. 2025, the Berkeley Function Calling Leaderboard (V4); the files of `bfcl-eval`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.bfcl.bfcl_conversation import MAX_STEPS, ServiceState, read_call
from whetstone.environments.bfcl.package import data_folder
from whetstone.errors import TaskError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

Category = Literal["base", "miss_func", "miss_param", "long_context"]


class ConversationTasks(ListedTasks):
    """Task source of BFCL's multi-turn conversations, one task per conversation.

    The expert makes the gold calls, one per action if the turn has enough steps.

    Args:
        category: `base`; `miss_func`: a function is offered only from some turn on; `miss_param`: a turn omits an
            argument, and the next one has it; `long_context`: the services contain far more data than needed.
        path: The folder with the questions and `possible_answer/`; empty: that of the package `bfcl-eval`.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.

    Raises:
        TaskError: If a file is missing or has a bad line.
        RecipeError: If `path` is empty and the package is not installed.
    """

    def __init__(
        self, *, category: Category = "base", path: str = "", seed: int = 0, held_out_fraction: float = 1.0
    ) -> None:
        folder = Path(path) if path else data_folder()
        name = f"BFCL_v4_multi_turn_{category}.json"
        answers = _answers(folder / "possible_answer" / name)

        def parse(row: Mapping[str, Any], number: int) -> Task:
            return conversation_task(row, answers[str(row["id"])])

        tasks, _ = read_tasks(folder / name, parse)
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=name), seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next gold calls of the turn, or a text that ends the turn."""
        turns = gold_actions(task)
        spoken = sum(message.role == "assistant" and not message.tool_calls for message in conversation)
        last = max((i for i, m in enumerate(conversation) if m.role == "assistant" and not m.tool_calls), default=-1)
        num_made = sum(message.role == "assistant" for message in conversation[last + 1 :])
        actions = turns[min(spoken, len(turns) - 1)]
        return assistant("", *actions[num_made]) if num_made < len(actions) else assistant("Done.")


def conversation_task(row: Mapping[str, Any], ground_truth: Sequence[Sequence[str]]) -> Task:
    """Create the task of a BFCL question.

    Args:
        row: Question, a line of the benchmark's file.
        ground_truth: Gold calls of each turn, in Python syntax.
    """
    keys = ("question", "initial_config", "involved_classes", "missed_function", "excluded_function")
    private = {key: row[key] for key in keys if key in row} | {"ground_truth": ground_truth}
    first = "\n".join(message["content"] for message in row["question"][0])
    return Task(str(row["id"]), first, private, {"kind": str(row["id"]).rsplit("_", 1)[0]})


def list_gold_turns(task: Task) -> list[list[ToolCall]]:
    """Return the gold calls of each turn, with keyword arguments."""
    world, turns = ServiceState(task), []
    for turn in task.private["ground_truth"]:
        calls = []
        for text in turn:
            name, named, positional = read_call(text)
            calls.append(ToolCall(name, json.dumps({**world.bind_arguments(name, positional), **named})))
        turns.append(calls)
    return turns


def _answers(path: Path) -> dict[str, Sequence[Sequence[str]]]:
    """Read the gold calls of each question, by its id.

    Raises:
        TaskError: If the file does not exist.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; the file of gold calls is part of the package bfcl-eval")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return {str(row["id"]): row["ground_truth"] for row in rows}


def gold_actions(task: Task) -> list[list[list[ToolCall]]]:
    """Return the gold calls by turn and action.

    An action has one call, or more if the turn has more calls than allowed steps.
    """
    return [
        [calls[at : at + size] for at in range(0, len(calls), size)]
        for calls in list_gold_turns(task)
        for size in [max(1, -(-len(calls) // MAX_STEPS))]
    ]
