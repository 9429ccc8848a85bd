"""The conversations of the leaderboard: what the user says turn by turn, and the gold calls of each turn.

Source: Patil et al. 2025, the Berkeley Function Calling Leaderboard (V4); the files of `bfcl-eval`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.bfcl.conversation import MOST_STEPS, World, read_call
from whetstone.environments.bfcl.package import data_folder
from whetstone.errors import TaskError
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import split_unless_all
from whetstone.trajectory import Task

Category = Literal["base", "miss_func", "miss_param", "long_context"]


class ConversationTasks(ListedTasks):
    """One task a conversation; the expert makes the gold calls, each in an action of its own where a turn has
    the steps for it.

    Args:
        category: `base`; `miss_func`: a function is there only from some turn on; `miss_param`: a turn leaves out what
            a call needs, and the next one says it; `long_context`: the services hold far more than is asked for.
        path: The folder with the questions and `possible_answer/`; empty: that of the package `bfcl-eval`.
        seed: The order in which training tasks come.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, as the benchmark does, and trains on the
            same.

    Raises:
        TaskError: A file is missing or has a bad line.
        RecipeError: `path` is empty and the package is not installed.
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
        """The next gold call of the turn, and a word at its end."""
        turns = gold_actions(task)
        spoken = sum(message.role == "assistant" and not message.tool_calls for message in conversation)
        last = max((i for i, m in enumerate(conversation) if m.role == "assistant" and not m.tool_calls), default=-1)
        made = sum(message.role == "assistant" for message in conversation[last + 1 :])
        actions = turns[min(spoken, len(turns) - 1)]
        return assistant("", *actions[made]) if made < len(actions) else assistant("Done.")


def conversation_task(row: Mapping[str, Any], ground_truth: Sequence[Sequence[str]]) -> Task:
    """A task from a question of the leaderboard and its gold calls."""
    kept = ("question", "initial_config", "involved_classes", "missed_function", "excluded_function")
    private = {key: row[key] for key in kept if key in row} | {"ground_truth": ground_truth}
    first = "\n".join(message["content"] for message in row["question"][0])
    return Task(str(row["id"]), first, private, {"kind": str(row["id"]).rsplit("_", 1)[0]})


def gold_calls(task: Task) -> list[list[ToolCall]]:
    """The gold calls of each turn, their arguments by name."""
    world, turns = World(task), []
    for turn in task.private["ground_truth"]:
        calls = []
        for text in turn:
            name, named, positional = read_call(text)
            calls.append(ToolCall(name, json.dumps({**world.named(name, positional), **named})))
        turns.append(calls)
    return turns


def _answers(path: Path) -> dict[str, Sequence[Sequence[str]]]:
    if not path.is_file():
        raise TaskError(f"{path}: no such file of gold calls")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return {str(row["id"]): row["ground_truth"] for row in rows}


def gold_actions(task: Task) -> list[list[list[ToolCall]]]:
    """By turn, the gold calls of each action: one, or as many as it takes in the steps a turn may have."""
    return [
        [calls[at : at + size] for at in range(0, len(calls), size)]
        for calls in gold_calls(task)
        for size in [max(1, -(-len(calls) // MOST_STEPS))]
    ]
