"""Early stopping when the budget of tool calls is exceeded: after one more turn to answer, the episode ends."""

from __future__ import annotations

from dataclasses import dataclass

from whetstone.rollout.context_transforms.budget_line import group_budget, used_calls
from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """Ends an episode that exceeds its budget of tool calls, as shown by the context transform `budget_line` (BATS).

    Source: BATS 2025, arXiv:2511.17006.
    """

    budgets: tuple[int, ...]
    """Budgets in tool calls, the same as those of `budget_line`."""

    @property
    def at_evaluation(self) -> bool:
        """Return True: the budget is part of the agent, so evaluations use it."""
        return True

    def __call__(self, state: EpisodeState, siblings: Siblings, /) -> bool:
        """Return whether to end the episode after its last turn; see `Stop.__call__`."""
        return used_calls(state) > group_budget(state.episode_key, self.budgets)
