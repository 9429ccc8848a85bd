"""Chance level of wins: whether luck explains the wins of a policy that makes one move or stops early.

Luck explains one right move among the admissible ones, or one win in twenty episodes if the environment does not list
them. A move that is not on the list is never luck, nor is text if tools must be called. A number of wins with a
probability below 1 in 1000 is not luck.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, ToolSpec
from whetstone.environments.text_actions import TOOL, parse_or_none

UNLISTED = 0.05
"""Probability that a first move wins if the environment does not list moves."""
ONCE_IN = 1000
"""Inverse of the false positive rate: one in this many checks of a sound environment may report a fault."""


def lucky_move_probability(action: Message, admissible: Sequence[str], tools: Sequence[ToolSpec] = ()) -> float | None:
    """Return the probability that a random admissible action is the right one; None without a list of actions."""
    if not admissible:
        words = not action.tool_calls and any(tool.name != TOOL for tool in tools)
        return 0.0 if words else None
    command = action.text
    for call in action.tool_calls:
        if call.name == TOOL:
            command = str((parse_or_none(call.arguments) or {}).get("command", ""))
    moves = {move.strip().lower() for move in admissible}
    return 1 / len(admissible) if command.strip().lower() in moves else 0.0


def lucky_win_probability(chances: Sequence[float | None]) -> float:
    """Return the probability that an episode is won by luck; all unlisted moves together count once."""
    return min(1.0, sum(chance or 0.0 for chance in chances) + UNLISTED * (None in chances))


def is_explained_by_luck(wins: int, chances: Sequence[float]) -> bool:
    """Return whether the probability of at least `wins` wins by luck is 1 in 1000 or more.

    >>> [is_explained_by_luck(wins, [chance] * 12) for wins, chance in ((1, 1 / 37), (3, 1 / 8), (9, 1 / 8))]
    [True, True, False]
    """
    return wins_tail_probability(wins, chances) >= 1 / ONCE_IN


def wins_tail_probability(wins: int, chances: Sequence[float]) -> float:
    """Return the probability of at least `wins` wins in independent tries with these probabilities."""
    exactly = [1.0]
    for chance in chances:
        lost = [share * (1 - chance) for share in exactly] + [0.0]
        won = [0.0] + [share * chance for share in exactly]
        exactly = [a + b for a, b in zip(lost, won, strict=True)]
    return min(1.0, sum(exactly[wins:]))
