"""FTRL reward: scores each turn by how many of its calls find an open golden answer.

Note: Several hits in one turn score more than one call per turn, and an answer that lists everything contains every
answer. Both follow from the published rule; only the second is fixed here.
"""

from __future__ import annotations

import re
from typing import Literal

from whetstone.rewards.answers.exact_match import normalize_answer, same_answer
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
    """Score each turn with calls by 2 h / (n + 1) for h hits of n calls; the outcome is 1 if the final answer is right.

    A call is a hit if its result contains an open golden answer of its tool, which is then closed. Golden answers are
    `task.private["answers"]`, by tool; the final answer is `task.private["answer"]`.

    A turn without a call scores:

    - −0.5 if it is empty,
    - −0.3 if its calls could not be parsed,
    - 1 / (1 + open golden answers) if it contains the final answer,
    - 0.5 if all golden answers are closed and it does not contain the final answer,
    - 0 otherwise.

    Args:
        form: Score of a turn: `f1` as above, `product`: h²/n, `precision`: h/n, `hits`: h.
        substring: Match a golden answer anywhere in a result, even inside a number, as in the code.

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    left = {tool: list(golden) for tool, golden in task.private["answers"].items()}
    total = sum(map(len, left.values()))
    wanted = str(task.private["answer"])
    answer = final_answer(trajectory)
    right = answer is not None and same_answer(answer, wanted)
    turn_rewards, hits, num_calls = [], 0, 0
    num_complete = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    for number, turn in enumerate(trajectory.turns):
        if number == num_complete:  # truncated: it was not executed
            turn_rewards.append(0.0)
            continue
        results = [message.text for message in turn.observation if message.role == "tool"]
        calls = turn.message.tool_calls
        if calls:
            turn_hits = sum(
                _closes(left.get(call.name, []), text, substring)
                for call, text in zip(calls, [*results, *[""] * len(calls)], strict=False)
            )
            hits, num_calls = hits + turn_hits, num_calls + len(calls)
            turn_rewards.append(step_reward(turn_hits, len(calls), form=form))
        else:
            turn_rewards.append(_without_call(turn, wanted, sum(map(len, left.values())), substring))
    parts = {
        "correct": float(right),
        "solved_share": hits / total if total else 1.0,
        **episode_rates(hits, num_calls, total),
    }
    return Score(float(right), parts, tuple(turn_rewards), right)


def step_reward(hits: int, calls: int, *, form: Literal["f1", "product", "precision", "hits"] = "f1") -> float:
    """Compute the reward of a turn with h hits of n calls; see `ftrl` for the forms.

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    return {
        "f1": 2 * hits / (calls + 1),
        "product": hits * hits / calls,
        "precision": hits / calls,
        "hits": float(hits),
    }[form]


def episode_rates(solved: int, calls: int, golden: int) -> dict[str, float]:
    """Compute precision (1 without calls) and F1 = 2 solved / (calls + golden) of an episode's calls.

    Source: FTRL 2025, arXiv:2508.08791, and its code.
    """
    return {
        "call_precision": solved / calls if calls else 1.0,
        "call_f1": 2 * solved / (calls + golden) if calls + golden else 1.0,
    }


def contains_golden_answer(text: str, golden: str, *, substring: bool = False) -> bool:
    """Return whether a text contains each comma-separated piece of a golden answer; as words unless `substring`."""
    pieces = [piece.strip() for piece in golden.split(",") if piece.strip()]
    if substring:
        bare = text.lower().replace(",", "")
        return bool(pieces) and all(piece.lower() in bare for piece in pieces)
    words = f" {_words(text)} "
    return bool(pieces) and all(f" {_words(piece)} " in words for piece in pieces)


def _words(text: str) -> str:
    protected = re.sub(r"(?<=\d)[.](?=\d)", "\0", re.sub(r"(?<=\d),(?=\d)", "", text))
    return normalize_answer(protected.replace("\0", "dot"))


def _closes(left: list[str], text: str, substring: bool) -> bool:
    for place, golden in enumerate(left):
        if contains_golden_answer(text, str(golden), substring=substring):
            del left[place]
            return True
    return False


def _without_call(turn: Turn, wanted: str, left: int, substring: bool) -> float:
    if turn.message.malformed:
        return -0.3
    if not turn.message.text.strip():
        return -0.5
    if contains_golden_answer(turn.message.text, wanted, substring=substring):
        return 1 / (1 + left)
    return 0.0 if left else 0.5
