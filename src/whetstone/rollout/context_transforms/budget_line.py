"""An agent that cannot see its budget cannot use more of it. Behind every tool's answer it reads what is left.

Easy to get wrong: all episodes of a group must have the same budget, or the baseline compares unlike things.
"""

from __future__ import annotations

from typing import Literal

from whetstone.chat import Message
from whetstone.plugins import OptionError
from whetstone.rollout.context_transforms.note import appended
from whetstone.rollout.context_transforms.plain import Untouched
from whetstone.rollout.protocol import EpisodeKey, EpisodeState

Regime = Literal["high", "medium", "low", "critical"]
_ADVICE: dict[Regime, str] = {
    "high": "explore",
    "medium": "be selective",
    "low": "only what is needed",
    "critical": "answer soon",
}


def regime(left: float) -> Regime:
    """What a share of the budget that is left calls for: from 0.7, 0.3, 0.1, and below.

    Source: BATS 2025, arXiv:2511.17006; the boundaries as remembered there.
    """
    if left >= 0.7:
        return "high"
    return "medium" if left >= 0.3 else "low" if left >= 0.1 else "critical"


def budget_of(occasion: EpisodeKey, budgets: tuple[int, ...]) -> int:
    """The budget of a group: one of several by chance; the last where there is no group."""
    return occasion.random("budget").choice(budgets) if occasion.group_size > 1 else budgets[-1]


def used_calls(so_far: EpisodeState) -> int:
    """Tool calls so far, whatever became of them."""
    return sum(len(turn.calls) for turn in so_far.turns)


class BudgetLine(Untouched):
    """Append the number of calls made and left to each tool result (BATS). `budget_exhausted` ends later episodes.

    Source: BATS 2025, arXiv:2511.17006; budgets drawn for each group are ours.

    Args:
        budgets: Tool calls an episode may make; each group draws one.
        advice: Whether a word of advice stands beside.
    """

    at_evaluation = True

    def __init__(self, *, budgets: tuple[int, ...], advice: bool = True) -> None:
        if not budgets or min(budgets) < 1:
            raise OptionError("budgets", f"one or more calls each, got {list(budgets)}")
        self.budgets, self.advice = budgets, advice

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """With a line on the budget."""
        budget = budget_of(so_far.occasion, self.budgets)
        used = used_calls(so_far)
        left = max(0, budget - used)
        if not so_far.turns[-1].calls:
            return messages
        said = f"[calls {used} of {budget}, {left} left" + (
            f": {_ADVICE[regime(left / budget)]}]" if self.advice else "]"
        )
        return appended(messages, said)
