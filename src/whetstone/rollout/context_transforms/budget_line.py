"""Context transform that appends the remaining budget of tool calls to every tool result.

Note:
    All episodes of a group must have the same budget, or the baseline compares unequal conditions.
"""

from __future__ import annotations

from typing import Literal

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.default_transform import IdentityTransform
from whetstone.rollout.context_transforms.insert_text import append_to_last
from whetstone.rollout.protocol import EpisodeKey, EpisodeState

Regime = Literal["high", "medium", "low", "critical"]
_ADVICE: dict[Regime, str] = {
    "high": "explore",
    "medium": "be selective",
    "low": "only what is needed",
    "critical": "answer soon",
}


def budget_level(left: float) -> Regime:
    """Return the level of a remaining budget from its fraction: high ≥ 0.7, medium ≥ 0.3, low ≥ 0.1, else critical.

    Source: BATS 2025, arXiv:2511.17006; the thresholds are from memory.
    """
    if left >= 0.7:
        return "high"
    return "medium" if left >= 0.3 else "low" if left >= 0.1 else "critical"


def group_budget(episode_key: EpisodeKey, budgets: tuple[int, ...]) -> int:
    """Return the budget of a group in tool calls: a random element of `budgets`; the last one for a group of one.

    All episodes of a group get the same budget.
    """
    return episode_key.random("budget").choice(budgets) if episode_key.group_size > 1 else budgets[-1]


def used_calls(state: EpisodeState) -> int:
    """Return the number of tool calls of the episode so far, failed ones included."""
    return sum(len(turn.calls) for turn in state.turns)


class BudgetLine(IdentityTransform):
    """Appends the number of used and remaining tool calls to each tool result (BATS).

    The early-stopping component `budget_exhausted` ends episodes that exceed the budget.

    Source: BATS 2025, arXiv:2511.17006; budgets sampled per group are an addition.

    Args:
        budgets: Maximum number of tool calls per episode; each group samples one.
        advice: Whether the line ends with advice for the remaining budget.
    """

    at_evaluation = True

    def __init__(self, *, budgets: tuple[int, ...], advice: bool = True) -> None:
        if not budgets or min(budgets) < 1:
            raise OptionError("budgets", f"must be at least 1 call each, got {list(budgets)}")
        self.budgets, self.advice = budgets, advice

    def observation(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Append the budget line to the last message; unchanged after a turn without a call."""
        budget = group_budget(state.episode_key, self.budgets)
        used = used_calls(state)
        left = max(0, budget - used)
        if not state.turns[-1].calls:
            return messages
        line = f"[calls {used} of {budget}, {left} left" + (
            f": {_ADVICE[budget_level(left / budget)]}]" if self.advice else "]"
        )
        return append_to_last(messages, line)
