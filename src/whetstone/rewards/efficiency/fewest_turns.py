"""Is one thing thought in a turn? A right answer pays more where its turns do not begin again in their middle.

Easy to get wrong: markers of a new beginning are words, and words can be avoided; look at how soon answers are right.
"""

from __future__ import annotations

import re
from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.calls_ran import well_formed
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
    """The outcome, a bonus for form, and, for a right answer, one for compact turns and one for few.

    Args:
        outcome: Says whether the answer is right.
        format: For calls that can all be read.
        compact: For turns of one unit each: the share of turns without a marker counts.
        brevity: For few turns: 1 − (turns − 1) / `max_turns` of it.
        max_turns: Number of turns from which `brevity` pays nothing.
        markers: Words a new unit begins with.

    Source: Zeng et al. 2025 (MinD), arXiv:2505.19788, which names form, correctness and unit compactness; what is
    several units in a turn is not told there, and the words are ours.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    words = re.compile(r"\b(" + "|".join(map(re.escape, markers or _MARKERS)) + r")\b", re.IGNORECASE)
    turns = trajectory.turns
    whole = sum(words.search(turn.message.text) is None for turn in turns) / max(1, len(turns))
    fine = (await well_formed(trajectory, task)).value
    right = float(bool(score.success))
    few = max(0.0, 1 - (len(turns) - 1) / max_turns)
    value = score.value + right * (format * fine + compact * whole + brevity * few)
    return replace(
        score, value=value, parts={**score.parts, "format": fine, "compact": whole, "turns": float(len(turns))}
    )
