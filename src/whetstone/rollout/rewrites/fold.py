"""The policy says when its history is to be folded, and writes the memory it goes on with, or lets it be written.

    … turns … → fold_memory() → "write your memory" → {episodic, working, tool} → task and memory → turns …

Easy to get wrong: what the policy writes is trained where it is written, and read where it is inherited; a memory that
somebody else wrote is read alone. To fold twice in a row is to fold once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from whetstone.chat import user
from whetstone.plugins import find_part
from whetstone.rollout.protocol import Ask, Change, EpisodeState, Reopen
from whetstone.trajectory import Turn

MEMORIES = ("episodic", "working", "tool")
"""What happened and was decided; what is to be done now and what stands in its way; which calls helped, and how."""
_QUESTION = (
    "Write your memory, as JSON with three keys: episodic (what happened, what was decided), working (what is to be "
    "done now, what stands in the way), tool (which calls were made, with what outcome). Nothing else will be kept."
)


def memory_of(text: str) -> str | None:
    """The three memories a policy wrote, as JSON with those keys alone; None where it wrote no object with one of them.

    >>> memory_of('So: {"working": "add 3", "mood": "good"}')
    '{"episodic": "", "working": "add 3", "tool": ""}'
    """
    begin, end = text.find("{"), text.rfind("}")
    try:
        read = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict) or not any(name in read for name in MEMORIES):
        return None
    return json.dumps({name: read.get(name, "") for name in MEMORIES}, ensure_ascii=False)


def remembered(so_far: EpisodeState) -> str:
    """What happened, without a model: which calls were made, what came of each, and what was said last.

    As the three memories of the method: episodic, working, tool.
    """
    done = [(call, turn) for turn in so_far.turns for call in turn.message.tool_calls if call.name != "fold_memory"]
    tools = [
        {
            "tool": call.name,
            "arguments": call.arguments,
            "outcome": "".join(m.text for m in turn.observation[-1:]),
        }
        for call, turn in done
    ]
    said = [turn.message.text for turn in so_far.turns if turn.message.text]
    return json.dumps({"episodic": f"{len(done)} calls made", "working": said[-1] if said else "", "tool": tools})


_WRITERS = {"listing": remembered, "policy": remembered}
"""By name; of the policy, who writes where it cannot be asked."""


class Fold:
    """Where the policy calls the tool `fold_memory`, it goes on behind its task and a memory of what was (DeepAgent).

    A policy that writes no memory of that form is asked once more; then what it wrote is the memory, cut. Where the
    context has no room left to ask, a plain listing is.

    Source: DeepAgent 2025, arXiv:2510.21618, whose memory an auxiliary model writes, which `writer` may be; segments as
        in SUPO are ours.

    Args:
        writer: Writes the memory: `policy`; `listing`, a plain one of the calls and what came of them; or
            `package.module:function` of `EpisodeState`, may be async.
        tool: What the policy calls for it.
        characters: A longer memory is cut.
        room: Tokens that must be free in the context to ask the policy.
        question: What it is asked.
    """

    at_evaluation = True

    def __init__(
        self,
        *,
        writer: str = "policy",
        tool: str = "fold_memory",
        characters: int = 2000,
        room: int = 64,
        question: str = _QUESTION,
    ) -> None:
        self.tool, self.characters, self.room, self.question = tool, characters, room, question
        self.asks = writer == "policy"
        self.writer: Callable[[EpisodeState], Any] = find_part("writer", writer, _WRITERS)

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """See `Rewrite`."""
        *before, last = so_far.turns
        if last.aside:
            asked_again = bool(before) and before[-1].aside
            said = memory_of(last.message.text)
            if said is None and not asked_again and self._has_room(so_far):
                return Ask(self.question)
            return self._behind(so_far, said if said is not None else last.message.text)
        acted = [turn for turn in before if not turn.aside]
        if not self._folds(last) or (acted and self._folds(acted[-1])):
            return None
        if self.asks and self._has_room(so_far):
            return Ask(self.question)
        memory = self.writer(so_far)
        text = str(await memory if hasattr(memory, "__await__") else memory)
        return self._behind(so_far, text)

    def _behind(self, so_far: EpisodeState, memory: str) -> Reopen:
        return Reopen((*so_far.opening, user(memory[: self.characters])))

    def _has_room(self, so_far: EpisodeState) -> bool:
        return so_far.context_tokens + self.room < so_far.context_length

    def _folds(self, turn: Turn) -> bool:
        return any(call.name == self.tool for call in turn.message.tool_calls)
