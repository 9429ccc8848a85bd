"""Which calls found something that was still to be found? Each turn is paid by its hits, and by its misses.

Easy to get wrong: batching hits pays more than one call a turn, and an answer that lists everything contains every
answer. Both are in the published rule; only the second is mended here.
"""

from __future__ import annotations

import re
from typing import Literal

from whetstone.rewards.answers.exact_match import normalized, same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.protocol import provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory, Turn


@provides("process_rewards", "solved_share")
async def ftrl(
    trajectory: Trajectory,
    task: Task,
    *,
    form: Literal["f1", "product", "precision", "hits"] = "f1",
    substring: bool = False,
) -> Score:
    """For each turn that calls, 2 h / (n + 1) for h hits of n calls; the outcome is 1 where the answer is right.

    A call hits where its result says an open golden answer of its tool, which is closed then. These are
    `task.private["answers"]`, by tool; the final answer is `task.private["answer"]`. A turn without a call is paid −0.5
    where it says nothing, −0.3 where calls could not be read, 1 / (1 + open ones) where it says the answer, 0.5 where
    all is closed and it does not, else 0.

    Args:
        form: `product`: h²/n; `precision`: h/n; `hits`: h.
        substring: As in the code, a golden answer is found anywhere in a result, in the middle of a number, too.

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    left = {tool: list(golden) for tool, golden in task.private["answers"].items()}
    total = sum(map(len, left.values()))
    wanted = str(task.private["answer"])
    answer = final_answer(trajectory)
    right = answer is not None and same_answer(answer, wanted)
    paid, hits, made = [], 0, 0
    whole = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    for number, turn in enumerate(trajectory.turns):
        if number == whole:  # cut off before its end: it said nothing to anybody
            paid.append(0.0)
            continue
        said = [message.text for message in turn.observation if message.role == "tool"]
        calls = turn.message.tool_calls
        if calls:
            found = sum(
                _closes(left.get(call.name, []), text, substring)
                for call, text in zip(calls, [*said, *[""] * len(calls)], strict=False)
            )
            hits, made = hits + found, made + len(calls)
            paid.append(step_reward(found, len(calls), form=form))
        else:
            paid.append(_without_call(turn, wanted, sum(map(len, left.values())), substring))
    parts = {
        "correct": float(right),
        "solved_share": hits / total if total else 1.0,
        **episode_rates(hits, made, total),
    }
    return Score(float(right), parts, tuple(paid), right)


def step_reward(hits: int, calls: int, *, form: Literal["f1", "product", "precision", "hits"] = "f1") -> float:
    """What a turn with h hits of n calls is paid.

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    return {
        "f1": 2 * hits / (calls + 1),
        "product": hits * hits / calls,
        "precision": hits / calls,
        "hits": float(hits),
    }[form]


def episode_rates(solved: int, calls: int, golden: int) -> dict[str, float]:
    """Precision (1 for no call), share solved, and 2 solved / (calls + golden).

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    return {
        "call_precision": solved / calls if calls else 1.0,
        "call_f1": 2 * solved / (calls + golden) if calls + golden else 1.0,
    }


def says(text: str, golden: str, *, substring: bool = False) -> bool:
    """Whether a text says every piece of a golden answer, which commas part; words for words unless `substring`."""
    pieces = [piece.strip() for piece in golden.split(",") if piece.strip()]
    if substring:
        bare = text.lower().replace(",", "")
        return bool(pieces) and all(piece.lower() in bare for piece in pieces)
    words = f" {_words(text)} "
    return bool(pieces) and all(f" {_words(piece)} " in words for piece in pieces)


def _words(text: str) -> str:
    kept = re.sub(r"(?<=\d)[.](?=\d)", "\0", re.sub(r"(?<=\d),(?=\d)", "", text))
    return normalized(kept.replace("\0", "dot"))


def _closes(left: list[str], text: str, substring: bool) -> bool:
    for place, golden in enumerate(left):
        if says(text, str(golden), substring=substring):
            del left[place]
            return True
    return False


def _without_call(turn: Turn, wanted: str, left: int, substring: bool) -> float:
    if turn.message.malformed:
        return -0.3
    if not turn.message.text.strip():
        return -0.5
    if says(turn.message.text, wanted, substring=substring):
        return 1 / (1 + left)
    return 0.0 if left else 0.5
