"""RLVMR reward: tags each turn as planning, exploring or reflecting, and rewards it by rule.

Tags are derived from the calls of a turn, not from its words, so an agent that only calls tools has them too.

Note: Planning is rewarded only if the episode succeeds; otherwise every first turn would be rewarded.
"""

from __future__ import annotations

from enum import IntEnum

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.protocol import Reward, provides
from whetstone.trajectory import Score, Task, Trajectory, Turn


class Thought(IntEnum):
    """Tag of a turn: planning, exploring, reflecting, or none."""

    NONE = -1
    PLANNING = 0
    EXPLORING = 1
    REFLECTING = 2


@provides("process_rewards", "tags")
async def meta_reasoning(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_number,
    size: float = 0.5,
    malformed: float = 0.1,
) -> Score:
    """Score the outcome, and each turn by its tag.

    - The first turn is planning; it is rewarded if the episode succeeds.
    - A turn after a failed call is reflecting; it is rewarded if its own calls succeed.
    - Any other turn with calls is exploring; it is rewarded for a new call.
    - An answer has no tag.

    Calls that cannot be parsed cost `malformed`.

    Args:
        outcome: Reward that determines whether the answer is right.
        size: Reward of a tagged turn.
        malformed: Penalty of a turn with a malformed call.

    Source: Zhang et al. 2025 (RLVMR), arXiv:2507.22844, §3.2; tags by calls instead of words are ours.
    """
    correct = await outcome(trajectory, task)
    if correct.invalid:
        return correct
    seen: set[tuple[str, str]] = set()
    earned, tags = [], []
    for number, turn in enumerate(trajectory.turns):
        calls = [(call.name, call.arguments) for call in turn.message.tool_calls]
        before = trajectory.turns[number - 1] if number else None
        tag, pays = Thought.NONE, False
        if number == 0:
            tag, pays = Thought.PLANNING, bool(correct.success)
        elif before is not None and _failed(before):
            tag, pays = Thought.REFLECTING, bool(calls) and not _failed(turn)
        elif calls:
            tag, pays = Thought.EXPLORING, not seen.issuperset(calls)
        seen.update(calls)
        earned.append(size * pays - malformed * bool(turn.message.malformed))
        tags.append(float(tag))
    return Score(correct.value, correct.parts, tuple(earned), correct.success, {"tags": tuple(tags)})


def _failed(turn: Turn) -> bool:
    return bool(turn.message.malformed) or any(call.outcome != "ok" for call in turn.calls)
