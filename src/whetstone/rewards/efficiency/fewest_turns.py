"""MinD reward: a right answer scores more if each of its turns contains one unit of thought.

Note: Units are detected by marker words, and a policy can avoid words; check how early answers are right.
"""

from __future__ import annotations

import re
from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.executed_calls import well_formed
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory

_MARKERS = ("wait", "alternatively", "hmm", "let me try again", "on second thought", "another approach")


async def fewest_turns(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    format: float = 0.1,
    compact: float = 0.3,
    brevity: float = 0.0,
    max_turns: int = 8,
    markers: list[str] | None = None,
) -> Score:
    """Add bonuses for format, for compact turns and for few turns to the reward of a right answer.

    Args:
        outcome: Reward that determines whether the answer is right.
        format: Bonus if all calls can be parsed.
        compact: Bonus for turns of one unit, times the fraction of turns without a marker.
        brevity: Bonus for few turns, times 1 − (turns − 1) / `max_turns`.
        max_turns: Number of turns from which there is no `brevity` bonus.
        markers: Words that start a new unit of thought; null: a built-in list such as "wait".

    Source: Zeng et al. 2025 (MinD), arXiv:2505.19788, which names form, correctness and unit compactness. It does not
    define several units in a turn; the words are ours.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    words = re.compile(r"\b(" + "|".join(map(re.escape, markers or _MARKERS)) + r")\b", re.IGNORECASE)
    turns = trajectory.turns
    compact_fraction = sum(words.search(turn.message.text) is None for turn in turns) / max(1, len(turns))
    fine = (await well_formed(trajectory, task)).value
    right = float(bool(score.success))
    few = max(0.0, 1 - (len(turns) - 1) / max_turns)
    value = score.value + right * (format * fine + compact * compact_fraction + brevity * few)
    return replace(
        score,
        value=value,
        parts={**score.parts, "format": fine, "compact": compact_fraction, "turns": float(len(turns))},
    )
