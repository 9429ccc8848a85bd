"""May a win be luck? Of who makes one move, or says a word that ends things, it may: where one move wins, some who make
it do not know why.

What luck explains: one right move among those that can be made; where a world does not list them, one win in twenty
episodes. What is no move on the list is no luck, and neither are words where tools are to be called. More wins than
luck comes to once in a thousand times are none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, ToolSpec
from whetstone.environments.commands import TOOL, arguments_of

UNLISTED = 0.05
"""The chance of a first move where a world does not list the moves."""
ONCE_IN = 1000
"""Checks of an honest world of which one may say that more was won than luck explains."""


def chance_of(action: Message, admissible: Sequence[str], tools: Sequence[ToolSpec] = ()) -> float | None:
    """That an action is the one right move of those on the list, taken blindly; None where there is no list."""
    if not admissible:
        words = not action.tool_calls and any(tool.name != TOOL for tool in tools)
        return 0.0 if words else None
    said = action.text
    for call in action.tool_calls:
        if call.name == TOOL:
            said = str((arguments_of(call.arguments) or {}).get("command", ""))
    listed = {move.strip().lower() for move in admissible}
    return 1 / len(admissible) if said.strip().lower() in listed else 0.0


def of_episode(chances: Sequence[float | None]) -> float:
    """That an episode is won by luck, of the chances of its actions; unlisted moves are one chance together."""
    return min(1.0, sum(chance or 0.0 for chance in chances) + UNLISTED * (None in chances))


def explained(wins: int, chances: Sequence[float]) -> bool:
    """Whether luck comes to so many wins, or more, at least once in a thousand times.

    >>> explained(1, [1 / 37] * 12), explained(3, [1 / 8] * 12), explained(9, [1 / 8] * 12)
    (True, True, False)
    """
    return at_least(wins, chances) >= 1 / ONCE_IN


def at_least(wins: int, chances: Sequence[float]) -> float:
    """The probability of so many wins, or more, in tries of these chances."""
    exactly = [1.0]
    for chance in chances:
        lost = [share * (1 - chance) for share in exactly] + [0.0]
        won = [0.0] + [share * chance for share in exactly]
        exactly = [a + b for a, b in zip(lost, won, strict=True)]
    return min(1.0, sum(exactly[wins:]))
