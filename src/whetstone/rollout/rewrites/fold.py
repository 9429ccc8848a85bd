"""The policy says when its history is to be folded; somebody else writes the memory it goes on with.

Easy to get wrong: the memory is not the policy's own text, so it is read and never trained. To fold twice in a row is
to fold once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from whetstone.chat import user
from whetstone.plugins import find_part
from whetstone.rollout.protocol import Change, EpisodeState, Reopen
from whetstone.trajectory import Turn


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


class Fold:
    """Where the policy calls the tool `fold_memory`, it goes on behind its task and a memory of what was (DeepAgent).

    Source: DeepAgent 2025, arXiv:2510.21618; segments as in SUPO are ours.

    Args:
        writer: Writes the memory: `package.module:function` of `EpisodeState`, may be async; empty: a plain listing.
        tool: What the policy calls for it.
        characters: A longer memory is cut.
    """

    at_evaluation = True

    def __init__(self, *, writer: str = "", tool: str = "fold_memory", characters: int = 2000) -> None:
        self.tool, self.characters = tool, characters
        self.writer: Callable[[EpisodeState], Any] = find_part("writer", writer, {}) if writer else remembered

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """See `Rewrite`."""
        *before, last = so_far.turns
        if not self._folds(last) or (before and self._folds(before[-1])):
            return None
        memory = self.writer(so_far)
        text = str(await memory if hasattr(memory, "__await__") else memory)
        return Reopen((*so_far.opening, user(text[: self.characters])))

    def _folds(self, turn: Turn) -> bool:
        return any(call.name == self.tool for call in turn.message.tool_calls)
