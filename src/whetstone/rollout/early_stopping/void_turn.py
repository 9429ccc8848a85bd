"""Early stopping after a void turn: a turn without a tool call and without an answer.

Note:
    This only ends the episode. The filter `void_turns` removes it from the loss and keeps it in the group's statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidTurn:
    """Ends an episode after a turn without a valid call, if the environment did not end it (SimpleTIR).

    Source: SimpleTIR 2025, arXiv:2509.02479, and its code.
    """

    def __call__(self, state: EpisodeState, siblings: Siblings, /) -> bool:
        """Return whether to end the episode after its last turn; see `Stop.__call__`."""
        last = state.turns[-1]
        return not last.message.tool_calls and not last.aside
