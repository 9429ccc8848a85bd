"""An agent that neither calls nor answers has drifted off. Its episode ends there.

Easy to get wrong: ending it is one thing, learning from it another; the filter `void_turns` takes it out of the loss
and leaves it in the group's statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidTurn:
    """Ends an episode behind a turn without a call that could be read, when the environment did not (SimpleTIR).

    Source: SimpleTIR 2025, arXiv:2509.02479, and its code.
    """

    def __call__(self, so_far: EpisodeState, siblings: Siblings, /) -> bool:
        """See `Stop`."""
        last = so_far.turns[-1]
        return not last.message.tool_calls and not last.aside
