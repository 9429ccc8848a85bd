"""ToolRL reward: correctness of tool calls in names, parameters and values, and their format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from whetstone.rewards.calls.canonical import Call, gold_calls, list_calls, same_call, same_value
from whetstone.trajectory import EndReason, Score, Task, Trajectory

_TAGS = {"tool_call": r"<tool_call>\n.*\n</tool_call>", "response": r"<response>.*</response>"}


async def tool_rl(
    trajectory: Trajectory,
    task: Task,
    *,
    match: Literal["parameters", "call", "exact"] = "parameters",
    assignment: Literal["optimal", "greedy"] = "optimal",
    format_weight: float = 1.0,
    size: float = 3.0,
) -> Score:
    """Score format, 0 or 1, and correctness, from −3 to 3, of an episode's calls against `task.private["calls"]`.

    Success means that exactly the gold calls were made. If a task requires no call, an episode is right without calls,
    and a call gets the minimum (the paper gives 0 for any call there, so unneeded calls are free).

    Args:
        match: Unit of comparison: `parameters`, names, parameters and values separately; `call`, each call as a whole;
            `exact`, all calls together.
        assignment: Assignment of several calls of a tool to gold calls: `optimal`, or `greedy` as in the code, which
            takes gold calls one after the other.
        format_weight: Weight of the format: all calls can be parsed, and there are calls if and only if required.
        size: Maximum absolute value of the correctness.

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, and its code.
    """
    calls, gold = list_calls(trajectory), gold_calls(task)
    unreadable = any(turn.message.malformed for turn in trajectory.turns) or trajectory.ended is EndReason.MAX_TOKENS
    well_formed = not unreadable and bool(calls) == bool(gold)
    right = not unreadable and matches_gold_calls(calls, gold)
    if not gold:
        value = -size if calls or unreadable else 0.0
    elif right:
        value = size
    elif match == "exact" or (unreadable and not calls):
        value = -size
    else:
        value = call_correctness(calls, gold, match=match, assignment=assignment, size=size)
    parts = {"correct": float(right), "format": float(well_formed), "correctness": value}
    return Score(format_weight * well_formed + value, parts, success=right)


def matches_gold_calls(calls: Sequence[Call], gold: Sequence[Call]) -> bool:
    """Return whether an episode made exactly the gold calls, in any order."""
    left = list(gold)
    for call in calls:
        index = next((k for k, other in enumerate(left) if same_call(call, other)), None)
        if index is None:
            return False
        del left[index]
    return not left


def call_correctness(
    calls: Sequence[Call],
    gold: Sequence[Call],
    *,
    match: Literal["parameters", "call"] = "parameters",
    assignment: Literal["optimal", "greedy"] = "optimal",
    size: float = 3.0,
) -> float:
    """Compute the correctness of calls, from −size to size.

        2 size · (J(names) + Σ_g [J(keys) + values that are equal]) / (1 + Σ_g (1 + |parameters of g|)) − size

    J is the overlap of multisets over their union. Each gold call is compared with one call of its name.

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, eq. 5 to 8, and its code.
    """
    if not gold:
        return 0.0
    most = 1.0 + sum(1 + len(each.arguments) for each in gold)
    similarities = np.array([[_similarity(g, p, match) for p in calls] for g in gold]).reshape(len(gold), len(calls))
    named = multiset_overlap([each.name for each in gold], [each.name for each in calls])
    return float(2 * size * (named + _matched(similarities, assignment)) / most - size)


def multiset_overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the multiset Jaccard index Σ min / Σ max; 1 if both are empty."""
    counts, other_counts = Counter(one), Counter(other)
    union = (counts | other_counts).total()
    return (counts & other_counts).total() / union if union else 1.0


def _similarity(gold: Call, call: Call, match: str) -> float:
    if gold.name != call.name:
        return 0.0
    equal = sum(
        key in call.arguments and same_value(call.arguments[key], value) for key, value in gold.arguments.items()
    )
    if match == "call":
        is_equal = equal == len(gold.arguments) == len(call.arguments)
        return float(1 + len(gold.arguments)) if is_equal else 0.0
    return multiset_overlap(list(gold.arguments), list(call.arguments)) + equal


def _matched(similarities: np.ndarray, assignment: str) -> float:
    if assignment == "optimal":
        rows, columns = linear_sum_assignment(similarities, maximize=True)
        return float(similarities[rows, columns].sum())
    total, used = 0.0, set()
    for row in similarities:
        free = [k for k in range(len(row)) if k not in used and row[k] > 0]
        if free:
            best = max(free, key=lambda k: float(row[k]))
            used.add(best)
            total += float(row[best])
    return total


def tagged_format(text: str, gold: str) -> bool:
    """Return whether a text has the same tags as the gold text: a thought first, then calls, an answer, or both; each
    once.

    For texts in the paper's own format, `<think>`, `<tool_call>` and `<response>`; episodes are scored by their
    messages. A tag that a thought mentions does not count (in the published data some do, and the code then requires
    both).

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, and its code.
    """
    thought, closed, response = text.strip().partition("</think>")
    wanted = gold.strip().partition("</think>")[2]
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in wanted]
    if not thought.startswith("<think>") or not closed or thought.count("<think>") != 1:
        return False
    pattern = "".join(rf"\n{_TAGS[tag]}" for tag in tags)
    once = all(response.count(f"<{tag}>") == response.count(f"</{tag}>") == (tag in tags) for tag in _TAGS)
    return once and re.fullmatch(pattern, response, re.DOTALL) is not None
