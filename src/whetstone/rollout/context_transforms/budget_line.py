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
    """Return the level of the remaining fraction of a budget: from 0.7, 0.3, 0.1, and below.

    Source: BATS 2025, arXiv:2511.17006; the thresholds are from memory.
    """
    if left >= 0.7:
        return "high"
    return "medium" if left >= 0.3 else "low" if left >= 0.1 else "critical"


def group_budget(occasion: EpisodeKey, budgets: tuple[int, ...]) -> int:
    """Return the budget of a group: a random one of `budgets`; the last one for a group of one."""
    return occasion.random("budget").choice(budgets) if occasion.group_size > 1 else budgets[-1]


def used_calls(so_far: EpisodeState) -> int:
    """Return the number of tool calls so far, whatever their outcome."""
    return sum(len(turn.calls) for turn in so_far.turns)


class BudgetLine(IdentityTransform):
    """Append the number of calls made and left to each tool result (BATS). `budget_exhausted` ends later episodes.

    Source: BATS 2025, arXiv:2511.17006; budgets sampled per group are an addition.

    Args:
        budgets: Maximum number of tool calls per episode; each group samples one.
        advice: Whether a word of advice is appended.
    """

    at_evaluation = True

    def __init__(self, *, budgets: tuple[int, ...], advice: bool = True) -> None:
        if not budgets or min(budgets) < 1:
            raise OptionError("budgets", f"must be at least 1 call each, got {list(budgets)}")
        self.budgets, self.advice = budgets, advice

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Return the messages with a line about the budget."""
        budget = group_budget(so_far.occasion, self.budgets)
        used = used_calls(so_far)
        left = max(0, budget - used)
        if not so_far.turns[-1].calls:
            return messages
        line = f"[calls {used} of {budget}, {left} left" + (
            f": {_ADVICE[budget_level(left / budget)]}]" if self.advice else "]"
        )
        return append_to_last(messages, line)
