"""Context rewrite that folds the history into a memory when the policy requests it.

    … turns … → fold_memory() → "write your memory" → {episodic, working, tool} → task and memory → turns …

Note:
    A memory that the policy writes is trained in the turn that writes it, and read in later ones; a memory of another
    writer is only read. Folding twice in a row equals folding once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from whetstone.chat import user
from whetstone.plugins import find_part
from whetstone.rollout.protocol import Ask, EpisodeState, HistoryChange, RestartContext
from whetstone.trajectory import Turn

MEMORIES = ("episodic", "working", "tool")
"""Keys of a memory: `episodic` (events and decisions), `working` (current goals and obstacles), `tool` (useful calls
and how they helped)."""
_QUESTION = (
    "Write your memory, as JSON with three keys: episodic (what happened, what was decided), working (what is to be "
    "done now, what stands in the way), tool (which calls were made, with what outcome). Nothing else will be kept."
)


def parse_memory(text: str) -> str | None:
    """Parse a memory in a response: a JSON object with the keys of `MEMORIES`, as text; other keys are dropped.

    Returns None if the response has no object with any of the keys.

    >>> parse_memory('So: {"working": "add 3", "mood": "good"}')
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


def default_memory(state: EpisodeState) -> str:
    """Write a memory without a model: the calls with their results, and the last message of the policy."""
    done = [(call, turn) for turn in state.turns for call in turn.message.tool_calls if call.name != "fold_memory"]
    tools = [
        {
            "tool": call.name,
            "arguments": call.arguments,
            "outcome": "".join(m.text for m in turn.observation[-1:]),
        }
        for call, turn in done
    ]
    texts = [turn.message.text for turn in state.turns if turn.message.text]
    return json.dumps({"episodic": f"{len(done)} calls made", "working": texts[-1] if texts else "", "tool": tools})


_WRITERS = {"listing": default_memory, "policy": default_memory}
"""Built-in memory writers by name; `policy` uses the listing if the policy cannot be queried."""


class Fold:
    """Replaces the history by the task and a memory when the policy calls the tool `fold_memory` (DeepAgent).

    A policy whose response is not a memory is queried once more; then its text is the memory, truncated. If the context
    has no room for the query, a plain listing is used.

    Source: DeepAgent 2025, arXiv:2510.21618, whose memory an auxiliary model writes, which `writer` may be; segments as
    in SUPO are an addition.

    Args:
        writer: Writer of the memory: `policy`; `listing`, a plain list of calls and results; or
            `package.module:function` of `EpisodeState`, which may be async.
        tool: Name of the tool that requests the folding.
        characters: Maximum number of characters of the memory.
        room: Number of tokens that must be free in the context to query the policy.
        question: Query to the policy.
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

    async def __call__(self, state: EpisodeState, /) -> HistoryChange | None:
        """Return a change of the episode's history, or None; see `Rewrite.__call__`."""
        *before, last = state.turns
        if last.aside:
            asked_again = bool(before) and before[-1].aside
            parsed = parse_memory(last.message.text)
            if parsed is None and not asked_again and self._has_room(state):
                return Ask(self.question)
            return self._restart_context(state, parsed if parsed is not None else last.message.text)
        acted = [turn for turn in before if not turn.aside]
        if not self._folds(last) or (acted and self._folds(acted[-1])):
            return None
        if self.asks and self._has_room(state):
            return Ask(self.question)
        memory = self.writer(state)
        text = str(await memory if hasattr(memory, "__await__") else memory)
        return self._restart_context(state, text)

    def _restart_context(self, state: EpisodeState, memory: str) -> RestartContext:
        return RestartContext((*state.opening, user(memory[: self.characters])))

    def _has_room(self, state: EpisodeState) -> bool:
        return state.context_tokens + self.room < state.context_length

    def _folds(self, turn: Turn) -> bool:
        return any(call.name == self.tool for call in turn.message.tool_calls)
