"""A budget of tool calls that is spent is spent: one more turn to answer, and the episode is over."""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.rollout.context_transforms.budget_line import budget_of, used_calls
from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Ends an episode that exceeds its budget of tool calls, that of the context transform `budget_line` (BATS).

    Source: BATS 2025, arXiv:2511.17006.
    """

    budgets: tuple[int, ...]
    """Budgets in tool calls, the same as those of `budget_line`."""

    @property
    def at_evaluation(self) -> bool:
        """A budget belongs to the agent."""
        return True

    def __call__(self, so_far: EpisodeState, siblings: Siblings, /) -> bool:
        """See `Stop`."""
        return used_calls(so_far) > budget_of(so_far.occasion, self.budgets)
