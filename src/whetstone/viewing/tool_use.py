"""How do tools do? Calls, what came of them, how long they took, and how many a step there were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from whetstone.causes import counted_causes
from whetstone.tools.plain_text import plain

_OTHERS = "(others)"
_MOST_TOOLS = 40
"""By calls; models call by names there are not, and each is one."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool."""

    name: str
    """As it was called; of those called seldom, together, `(others)`."""
    named: bool
    """Whether it is the name of one tool."""
    calls: int
    outcomes: dict[str, int]
    seconds: dict[str, float]
    """`median`, `p95` and `most` of the calls that ran; empty where none did."""
    steps: list[int]
    by_step: list[int]
    """Calls in each of `steps`."""
    failed_by_step: list[float]
    """Share of them that were not `ok`."""
    truncated: int
    """Results that were cut to `environment.max_result_characters`."""
    error: str
    """The most frequent error message; empty if no call failed."""


_Call = tuple[str, int | None, float, int, str]
"""(outcome, step, seconds, whether the result was cut, error message)"""


def tool_use(calls: Iterable[tuple[str, str, int | None, float, int, str]]) -> list[ToolUse]:
    """Tools by how often they were called.

    Args:
        calls: (tool, outcome, step, seconds, whether the result was cut, error message)
    """
    held: dict[str, list[_Call]] = defaultdict(list)
    for name, outcome, step, seconds, truncated, error in calls:
        held[name].append((outcome, step, seconds, truncated, error))
    names = sorted(held, key=lambda name: -len(held[name]))
    if len(names) > _MOST_TOOLS:
        held[_OTHERS] = [call for name in names[_MOST_TOOLS:] for call in held[name]]
        names = [*names[:_MOST_TOOLS], _OTHERS]
    return [_of(name, held[name]) for name in names]


def _of(name: str, calls: list[_Call]) -> ToolUse:
    ran = np.array([call[2] for call in calls if call[2] > 0])
    steps = Counter(call[1] for call in calls if call[1] is not None)
    failed = Counter(call[1] for call in calls if call[1] is not None and call[0] != "ok")
    errors = counted_causes((call[4] for call in calls if call[4]), most=1)
    order = sorted(steps)
    seconds = {}
    if len(ran):
        middle, most = np.percentile(ran, [50, 95])
        seconds = {"median": float(middle), "p95": float(most), "most": float(ran.max())}
    return ToolUse(
        plain(name) or "(unreadable call)",
        bool(name) and name != _OTHERS,
        len(calls),
        dict(Counter(call[0] for call in calls).most_common()),
        seconds,
        order,
        [steps[step] for step in order],
        [failed[step] / steps[step] for step in order],
        sum(call[3] for call in calls),
        next(iter(errors), ""),
    )
