"""Agent memory of BFCL: facts of earlier conversations are asked for in a later conversation.

In a *conversation* the agent receives facts, and its memory at the end is stored. A *question* of the same scenario, in
a new context, must be answered from the memory. Three memories are available: pairs of keys and values (`kv`), texts by
similarity (`vector`), one text (`rec_sum`); they are those of the package.

Note:
    The content of the memory depends on `folder`. With `folder` it is the result of the agent's conversations, played
    in order. Without it, the memory has the text of all conversations, up to its capacity, and a conversation starts
    with the text of the preceding ones.

Source: Patil et al. 2025, the Berkeley Function Calling Leaderboard (V4, memory), `agentic_checker`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.atomic_write import write_text
from whetstone.chat import Message, system, user
from whetstone.environments.bfcl.bfcl_conversation import MAX_STEPS, ServiceState, execute_calls
from whetstone.environments.bfcl.package import NEEDS, create_memory, memory_instructions, read_descriptions
from whetstone.environments.function_calls import function_spec
from whetstone.environments.protocol import Observation, StepResult
from whetstone.errors import TaskError
from whetstone.tools.thread_runner import run_in_thread
from whetstone.trajectory import Author, EndReason, Task

_STRIPPED = re.compile(r"[,./\-_*^()]")
_ROOM = {"kv": 2000, "vector": 2000, "rec_sum": 10_000}
"""Maximum characters of an entry, by backend."""
_MOST_ENTRIES = {"kv": 50, "vector": 50, "rec_sum": 1}
"""Maximum number of entries, by backend."""


class Memory:
    """Environment that plays a BFCL conversation or question with an agent memory.

    The task's private data name the `backend` of the memory and the user's messages (`question`).

    Ends: terminated after the last turn; truncated if a turn takes more steps than allowed.

    Args:
        folder: Folder of stored memories, as `BACKEND/SCENARIO.json`; empty: each starts with the text of the
            conversations.
        max_steps: Maximum number of actions per turn.
    """

    judges = True
    speaks = True

    needs = NEEDS

    def __init__(self, *, folder: str = "", max_steps: int = MAX_STEPS) -> None:
        self.folder, self.max_steps = folder, max_steps
        self.replayable = not folder
        self._private: Mapping[str, Any] = {}
        self._memory: Any = None
        self._world: ServiceState | None = None
        self._turn = self._steps = 0
        self._answer = ""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Fill or restore the memory and return the instructions and the first message.

        The instructions show the content of the memory.

        Raises:
            RecipeError: If the package, or a dependency of the memory, is not installed.
            TaskError: If the stored memory of the preceding conversations does not exist.
        """
        self._private = private = task.private
        backend = private["backend"]
        self._memory = await run_in_thread(create_memory, backend)  # the vector memory loads a model
        self._turn = self._steps = 0
        self._answer = ""
        if not self.folder:
            fill_memory(self._memory, backend, private["heard"])
        elif private["number"]:
            restore_memory(self._memory, backend, self._read_stored())
        self._world = ServiceState.from_services({backend: self._memory})
        instructions = memory_instructions(backend, private["scenario"], self._memory, asks="answers" in private)
        tools = tuple(function_spec(each) for each in read_descriptions(f"memory_{backend}"))
        return Observation((system(instructions), *self._user_messages()), tools, author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """Execute the calls of an action on the memory.

        An action without calls ends the turn. After the last turn of a conversation, the memory is stored in `folder`,
        if it is set.
        """
        assert self._world is not None
        self._steps += 1
        if action.tool_calls or action.malformed:
            answers, records, _ = execute_calls(self._world, action)
            return StepResult(Observation(answers), truncated=self._steps > self.max_steps, calls=records)
        self._turn, self._steps, self._answer = self._turn + 1, 0, action.text
        if self._turn < len(self._private["question"]):
            return StepResult(Observation(self._user_messages(), author=Author.OTHER_AGENT))
        if self.folder and "answers" not in self._private:
            write_text(self._memory_file(), json.dumps(export_memory(self._memory, self._private["backend"])))
        return StepResult(Observation(()), terminated=True, reason=EndReason.TERMINATED)

    async def verdict(self) -> Mapping[str, Any]:
        """Return whether a question was answered correctly.

        For a conversation, which the benchmark does not judge, the score is the fraction of answers that are in the
        memory, among the questions that the conversation's text answers.
        """
        over = self._turn >= len(self._private.get("question", "?"))
        if "answers" in self._private:
            right = over and contains_answer(self._answer, self._private["answers"])
            return {"success": right, "score": float(right)}
        questions = [one for one in self._private.get("asked", ()) if contains_answer(self._conversation_text(), one)]
        content = "" if self._memory is None else memory_text(self._memory, self._private["backend"])
        num_stored = sum(contains_answer(content, one) for one in questions)
        share = num_stored / len(questions) if questions else float(bool(content))
        return {
            "success": over and share == 1.0,
            "score": share if over else 0.0,
            "kept": num_stored,
            "asked": len(questions),
        }

    async def close(self) -> None:
        """Release the agent memory and its service."""
        self._world = self._memory = None

    def _user_messages(self) -> tuple[Message, ...]:
        """Return the user's messages of the current turn of the conversation."""
        return tuple(user(str(one["content"])) for one in self._private["question"][self._turn])

    def _conversation_text(self) -> str:
        """Return the user's messages of all turns as one text."""
        return "\n".join(str(one["content"]) for turn in self._private["question"] for one in turn)

    def _memory_file(self) -> Path:
        """Return the path of the stored memory of the scenario."""
        return Path(self.folder, self._private["backend"], f"{self._private['scenario']}.json")

    def _read_stored(self) -> Any:
        """Read the stored memory of the scenario.

        Raises:
            TaskError: If it does not exist.
        """
        if not self._memory_file().is_file():
            raise TaskError(
                f"{self._memory_file()}: no such file; play the conversations of this scenario first, in order "
                "(part: conversations), or omit folder"
            )
        return json.loads(self._memory_file().read_text(encoding="utf-8"))


def contains_answer(text: str, accepted: Sequence[str]) -> bool:
    """Return whether a text contains an accepted answer as whole words.

    Case and punctuation are ignored.

    >>> contains_answer("On April 1, 2024.", ["april 1 2024"]), contains_answer("It is 135.", ["35"])
    (True, False)
    """
    bare = _bare(text)
    return any(re.search(rf"\b{re.escape(_bare(str(one)))}\b", bare) for one in accepted)


def _bare(text: str) -> str:
    """Return a text in lower case without punctuation."""
    return _STRIPPED.sub("", text).lower().replace("'", '"')


def fill_memory(memory: Any, backend: str, texts: Sequence[str]) -> None:
    """Store texts in a memory verbatim; the latest part if they exceed its capacity.

    Args:
        memory: Empty memory.
        backend: `kv`, `vector` or `rec_sum`.
        texts: Texts to store, the oldest first.
    """
    text, room = "\n".join(texts), _ROOM[backend]
    parts: list[str] = []
    while text:
        cut = len(text) if len(text) <= room else max(text.rfind(" ", 1, room), 1)
        parts.append(text[:cut])
        text = text[cut:].lstrip()
    parts = parts[-_MOST_ENTRIES[backend] :]
    if backend == "kv":
        memory.archival_memory = {f"said_{number}": part for number, part in enumerate(parts, start=1)}
    elif backend == "rec_sum":
        memory.memory = parts[-1] if parts else ""
    else:
        for part in parts:
            memory.archival_memory_add(part)


def export_memory(memory: Any, backend: str) -> dict[str, Any]:
    """Return the content of a memory as JSON values, in the format of the package."""
    if backend == "rec_sum":
        return {"memory": memory.memory}
    both = {"core_memory": memory.core_memory, "archival_memory": memory.archival_memory}
    return both if backend == "kv" else {name: store.export() for name, store in both.items()}


def restore_memory(memory: Any, backend: str, content: Mapping[str, Any]) -> None:
    """Load content that `export_memory` returned into an empty memory."""
    for name, value in content.items():
        if backend == "vector":
            getattr(memory, name).load_from_snapshot(value)
        else:
            setattr(memory, name, value)


def memory_text(memory: Any, backend: str) -> str:
    """Return the content of an agent memory as one text.

    Args:
        memory: Memory of the package.
        backend: `kv`, `vector` or `rec_sum`.
    """
    if backend == "rec_sum":
        return str(memory.memory)
    if backend == "kv":
        return "\n".join([*memory.core_memory.values(), *memory.archival_memory.values()])
    return json.dumps(export_memory(memory, backend), ensure_ascii=False)
