"""Tool statistics of a run: calls, outcomes, durations, and calls per step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from whetstone.failure_causes import count_causes
from whetstone.tools.sanitize_text import sanitize_text

_OTHERS = "(others)"
_MAX_TOOLS = 40
"""Maximum number of tools in the table, by calls; models also call nonexistent tools, and each name counts."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Statistics of one tool."""

    name: str
    """Name in the calls; rarely called tools are combined as `(others)`."""
    named: bool
    """Whether the row is of a single tool."""
    calls: int
    outcomes: dict[str, int]
    seconds: dict[str, float]
    """`median`, `p95` and `most` of the calls that ran; empty if none did."""
    steps: list[int]
    by_step: list[int]
    """Number of calls in each of `steps`."""
    failed_by_step: list[float]
    """Fraction of these calls that were not `ok`."""
    truncated: int
    """Number of results that were cut to `environment.max_result_characters`."""
    error: str
    """The most frequent error message; empty if no call failed."""


_Call = tuple[str, int | None, float, int, str]
"""(outcome, step, seconds, whether the result was cut, error message)"""


def summarize_tools(calls: Iterable[tuple[str, str, int | None, float, int, str]]) -> list[ToolUse]:
    """Return the statistics of tools, the most frequently called first.

    Args:
        calls: (tool, outcome, step, seconds, whether the result was cut, error message)
    """
    calls_by_tool: dict[str, list[_Call]] = defaultdict(list)
    for name, outcome, step, seconds, truncated, error in calls:
        calls_by_tool[name].append((outcome, step, seconds, truncated, error))
    names = sorted(calls_by_tool, key=lambda name: -len(calls_by_tool[name]))
    if len(names) > _MAX_TOOLS:
        calls_by_tool[_OTHERS] = [call for name in names[_MAX_TOOLS:] for call in calls_by_tool[name]]
        names = [*names[:_MAX_TOOLS], _OTHERS]
    return [_summarize_tool(name, calls_by_tool[name]) for name in names]


def _summarize_tool(name: str, calls: list[_Call]) -> ToolUse:
    ran = np.array([call[2] for call in calls if call[2] > 0])
    steps = Counter(call[1] for call in calls if call[1] is not None)
    failed = Counter(call[1] for call in calls if call[1] is not None and call[0] != "ok")
    errors = count_causes((call[4] for call in calls if call[4]), most=1)
    order = sorted(steps)
    seconds = {}
    if len(ran):
        middle, most = np.percentile(ran, [50, 95])
        seconds = {"median": float(middle), "p95": float(most), "most": float(ran.max())}
    return ToolUse(
        sanitize_text(name) or "(unreadable call)",
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
