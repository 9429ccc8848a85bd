"""An agent with a memory of the leaderboard's: what is said in conversations of one day is asked for on another.

A *conversation* tells the agent things; his memory is what it has become when that ends. A *question* of the same
scenario, in a new context, is answered from memory. Three memories: pairs of keys and values (`kv`), texts by likeness
(`vector`), one text (`rec_sum`); they are those of the package.

Easy to get wrong: whose memory a question is asked of. With `folder` it is what the agent's own conversations, played
in their order, have left there; without, all that was said, as far as it has room, and a conversation begins with what
was said before it.

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
from whetstone.environments.bfcl.conversation import MOST_STEPS, World, carried_out
from whetstone.environments.bfcl.package import NEEDS, described, instructions_of_memory, memory_of
from whetstone.environments.function_calls import offered
from whetstone.environments.protocol import Observation, StepResult
from whetstone.errors import TaskError
from whetstone.tools.threads import run_in_thread
from whetstone.trajectory import Author, EndReason, Task

_STRIPPED = re.compile(r"[,./\-_*^()]")
_ROOM = {"kv": 2000, "vector": 2000, "rec_sum": 10_000}
"""Characters of an entry."""
_MOST_ENTRIES = {"kv": 50, "vector": 50, "rec_sum": 1}


class Memory:
    """Plays `question` of the task's private data over a memory of `backend`.

    Ends: terminated behind the last turn; truncated where a turn takes more steps than allowed.

    Args:
        folder: Where memories are kept, as `BACKEND/SCENARIO.json`; empty: each begins with what was said.
        max_steps: Actions a turn may take.
    """

    judges = True
    speaks = True

    needs = NEEDS

    def __init__(self, *, folder: str = "", max_steps: int = MOST_STEPS) -> None:
        self.folder, self.max_steps = folder, max_steps
        self.replayable = not folder
        self._private: Mapping[str, Any] = {}
        self._memory: Any = None
        self._world: World | None = None
        self._turn = self._steps = 0
        self._answer = ""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """How it is used and what it holds, what the user says first, and the functions of the memory.

        Raises:
            RecipeError: The package, or what it needs, is not installed.
            TaskError: A conversation that is to go on behind others has none.
        """
        self._private = private = task.private
        backend = private["backend"]
        self._memory = await run_in_thread(memory_of, backend)  # one of them loads a model
        self._turn = self._steps = 0
        self._answer = ""
        if not self.folder:
            fill(self._memory, backend, private["heard"])
        elif private["number"]:
            restore(self._memory, backend, self._kept())
        self._world = World.of({backend: self._memory})
        said = instructions_of_memory(backend, private["scenario"], self._memory, asks="answers" in private)
        tools = tuple(offered(each) for each in described(f"memory_{backend}"))
        return Observation((system(said), *self._said()), tools, author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """Carry out the calls, or end the turn."""
        assert self._world is not None
        self._steps += 1
        if action.tool_calls or action.malformed:
            answers, records, _ = carried_out(self._world, action)
            return StepResult(Observation(answers), truncated=self._steps > self.max_steps, calls=records)
        self._turn, self._steps, self._answer = self._turn + 1, 0, action.text
        if self._turn < len(self._private["question"]):
            return StepResult(Observation(self._said(), author=Author.OTHER_AGENT))
        if self.folder and "answers" not in self._private:
            write_text(self._file(), json.dumps(exported(self._memory, self._private["backend"])))
        return StepResult(Observation(()), terminated=True, reason=EndReason.TERMINATED)

    async def verdict(self) -> Mapping[str, Any]:
        """Of a question, whether the answer was given. Of a conversation, which is not judged in the benchmark, the
        share of the questions its words answer whose answers are in memory."""
        over = self._turn >= len(self._private.get("question", "?"))
        if "answers" in self._private:
            right = over and answered(self._answer, self._private["answers"])
            return {"success": right, "score": float(right)}
        asked = [one for one in self._private.get("asked", ()) if answered(self._words(), one)]
        held = "" if self._memory is None else text_of(self._memory, self._private["backend"])
        kept = sum(answered(held, one) for one in asked)
        share = kept / len(asked) if asked else float(bool(held))
        return {"success": over and share == 1.0, "score": share if over else 0.0, "kept": kept, "asked": len(asked)}

    async def close(self) -> None:
        """Nothing is held."""
        self._world = self._memory = None

    def _said(self) -> tuple[Message, ...]:
        return tuple(user(str(one["content"])) for one in self._private["question"][self._turn])

    def _words(self) -> str:
        return "\n".join(str(one["content"]) for turn in self._private["question"] for one in turn)

    def _file(self) -> Path:
        return Path(self.folder, self._private["backend"], f"{self._private['scenario']}.json")

    def _kept(self) -> Any:
        if not self._file().is_file():
            raise TaskError(
                f"{self._file()}: no such file; play the conversations of this scenario first, in their order "
                "(part: conversations), or leave folder out"
            )
        return json.loads(self._file().read_text(encoding="utf-8"))


def answered(said: str, accepted: Sequence[str]) -> bool:
    """Whether a text holds one of the accepted answers as a whole, whatever its case and punctuation.

    >>> answered("On April 1, 2024.", ["april 1 2024"]), answered("It is 135.", ["35"])
    (True, False)
    """
    bare = _bare(said)
    return any(re.search(rf"\b{re.escape(_bare(str(one)))}\b", bare) for one in accepted)


def _bare(text: str) -> str:
    return _STRIPPED.sub("", text).lower().replace("'", '"')


def fill(memory: Any, backend: str, said: Sequence[str]) -> None:
    """Put in what was said, word for word; where there is no room for all of it, the latest."""
    whole, room = "\n".join(said), _ROOM[backend]
    parts: list[str] = []
    while whole:
        cut = len(whole) if len(whole) <= room else max(whole.rfind(" ", 1, room), 1)
        parts.append(whole[:cut])
        whole = whole[cut:].lstrip()
    parts = parts[-_MOST_ENTRIES[backend] :]
    if backend == "kv":
        memory.archival_memory = {f"said_{number}": part for number, part in enumerate(parts, start=1)}
    elif backend == "rec_sum":
        memory.memory = parts[-1] if parts else ""
    else:
        for part in parts:
            memory.archival_memory_add(part)


def exported(memory: Any, backend: str) -> dict[str, Any]:
    """What it holds, as the package writes it down."""
    if backend == "rec_sum":
        return {"memory": memory.memory}
    both = {"core_memory": memory.core_memory, "archival_memory": memory.archival_memory}
    return both if backend == "kv" else {name: store.export() for name, store in both.items()}


def restore(memory: Any, backend: str, held: Mapping[str, Any]) -> None:
    """Put in what was written down."""
    for name, value in held.items():
        if backend == "vector":
            getattr(memory, name).load_from_snapshot(value)
        else:
            setattr(memory, name, value)


def text_of(memory: Any, backend: str) -> str:
    """All it holds as one text."""
    if backend == "rec_sum":
        return str(memory.memory)
    if backend == "kv":
        return "\n".join([*memory.core_memory.values(), *memory.archival_memory.values()])
    return json.dumps(exported(memory, backend), ensure_ascii=False)
