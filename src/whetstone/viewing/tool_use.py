"""How do tools do? Calls, what came of them, how long they took, and how many a step there were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

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


def tool_use(calls: Iterable[tuple[str, str, int | None, float]]) -> list[ToolUse]:
    """Tools by how often they were called.

    Args:
        calls: (tool, outcome, step, seconds)
    """
    held: dict[str, list[tuple[str, int | None, float]]] = defaultdict(list)
    for name, outcome, step, seconds in calls:
        held[name].append((outcome, step, seconds))
    names = sorted(held, key=lambda name: -len(held[name]))
    if len(names) > _MOST_TOOLS:
        held[_OTHERS] = [call for name in names[_MOST_TOOLS:] for call in held[name]]
        names = [*names[:_MOST_TOOLS], _OTHERS]
    return [_of(name, held[name]) for name in names]


def _of(name: str, calls: list[tuple[str, int | None, float]]) -> ToolUse:
    ran = np.array([seconds for _, _, seconds in calls if seconds > 0])
    steps = Counter(step for _, step, _ in calls if step is not None)
    failed = Counter(step for outcome, step, _ in calls if step is not None and outcome != "ok")
    order = sorted(steps)
    seconds = {}
    if len(ran):
        middle, most = np.percentile(ran, [50, 95])
        seconds = {"median": float(middle), "p95": float(most), "most": float(ran.max())}
    return ToolUse(
        plain(name) or "(unreadable call)",
        bool(name) and name != _OTHERS,
        len(calls),
        dict(Counter(outcome for outcome, _, _ in calls).most_common()),
        seconds,
        order,
        [steps[step] for step in order],
        [failed[step] / steps[step] for step in order],
    )
