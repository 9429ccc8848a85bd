"""How close are the calls of an episode to the gold ones? In names, in parameters and in their values, and in form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from whetstone.rewards.calls.canonical import Call, calls_of, gold_calls, same_call, same_value
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
    """Format, 0 or 1, and correctness, from −3 to 3, of an episode's calls against `task.private["calls"]`.

    Success is that every gold call was made and no other. An episode whose task asks for no call is right where it made
    none, and has the least where it made one (the paper gives 0 for any call there, so calling too much is free).

    Args:
        match: Unit of comparison: `parameters`, names, parameters and values separately; `call`, each call as a whole;
            `exact`, all calls together.
        assignment: Which calls are compared with each other where a tool is called again: the best way, or the code's,
            which takes gold calls one after the other.
        format_weight: Of the format: no call that cannot be read, and calls where calls are asked for.
        size: Correctness is from −size to size.

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, and its code.
    """
    made, gold = calls_of(trajectory), gold_calls(task)
    unreadable = any(turn.message.malformed for turn in trajectory.turns) or trajectory.ended is EndReason.MAX_TOKENS
    well_formed = not unreadable and bool(made) == bool(gold)
    right = not unreadable and same_calls(made, gold)
    if not gold:
        value = -size if made or unreadable else 0.0
    elif right:
        value = size
    elif match == "exact" or (unreadable and not made):
        value = -size
    else:
        value = correctness(made, gold, match=match, assignment=assignment, size=size)
    parts = {"correct": float(right), "format": float(well_formed), "correctness": value}
    return Score(format_weight * well_formed + value, parts, success=right)


def same_calls(made: Sequence[Call], gold: Sequence[Call]) -> bool:
    """Whether the same calls were made, in any order."""
    left = list(gold)
    for call in made:
        found = next((k for k, other in enumerate(left) if same_call(call, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def correctness(
    made: Sequence[Call],
    gold: Sequence[Call],
    *,
    match: Literal["parameters", "call"] = "parameters",
    assignment: Literal["optimal", "greedy"] = "optimal",
    size: float = 3.0,
) -> float:
    """How right calls are, from −size to size.

        2 size · (J(names) + Σ_g [J(keys) + values that are equal]) / (1 + Σ_g (1 + |parameters of g|)) − size

    J is the overlap of multisets over their union. Each gold call is compared with one call of its name.

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, eq. 5 to 8, and its code.
    """
    if not gold:
        return 0.0
    most = 1.0 + sum(1 + len(call.arguments) for call in gold)
    similarities = np.array([[_similarity(g, p, match) for p in made] for g in gold]).reshape(len(gold), len(made))
    named = overlap([call.name for call in gold], [call.name for call in made])
    return float(2 * size * (named + _matched(similarities, assignment)) / most - size)


def overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """Σ min / Σ max over what is in either, counted; 1 of nothing and nothing."""
    ours, theirs = Counter(one), Counter(other)
    union = (ours | theirs).total()
    return (ours & theirs).total() / union if union else 1.0


def _similarity(gold: Call, call: Call, match: str) -> float:
    if gold.name != call.name:
        return 0.0
    equal = sum(
        key in call.arguments and same_value(call.arguments[key], value) for key, value in gold.arguments.items()
    )
    if match == "call":
        is_equal = equal == len(gold.arguments) == len(call.arguments)
        return float(1 + len(gold.arguments)) if is_equal else 0.0
    return overlap(list(gold.arguments), list(call.arguments)) + equal


def _matched(alike: np.ndarray, assignment: str) -> float:
    if assignment == "optimal":
        rows, columns = linear_sum_assignment(alike, maximize=True)
        return float(alike[rows, columns].sum())
    total, used = 0.0, set()
    for row in alike:
        free = [k for k in range(len(row)) if k not in used and row[k] > 0]
        if free:
            best = max(free, key=lambda k: float(row[k]))
            used.add(best)
            total += float(row[best])
    return total


def tagged_format(text: str, gold: str) -> bool:
    """Whether a text is tagged as the gold one is: thought first, then calls, an answer, or both; each once.

    For texts in the paper's own form, `<think>`, `<tool_call>` and `<response>`; episodes are judged by their messages.
    A tag that a thought speaks of is none (in the published data some do, and the code then asks for both).

    Source: Qian et al. 2025 (ToolRL), arXiv:2504.13958, and its code.
    """
    thought, closed, behind = text.strip().partition("</think>")
    wanted = gold.strip().partition("</think>")[2]
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in wanted]
    if not thought.startswith("<think>") or not closed or thought.count("<think>") != 1:
        return False
    said = "".join(rf"\n{_TAGS[tag]}" for tag in tags)
    once = all(behind.count(f"<{tag}>") == behind.count(f"</{tag}>") == (tag in tags) for tag in _TAGS)
    return once and re.fullmatch(said, behind, re.DOTALL) is not None
