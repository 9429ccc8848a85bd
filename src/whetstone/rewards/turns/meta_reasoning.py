"""Does an agent plan, explore and mend what failed? Each turn is tagged by what it does, and paid by rule.

Tags are read from what a turn does, not from words around it, so an agent that only calls tools has them too.

Easy to get wrong: planning pays only where the episode succeeded in the end; or every first turn would be paid.
"""

from __future__ import annotations

from enum import IntEnum

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.protocol import Reward, provides
from whetstone.trajectory import Score, Task, Trajectory, Turn


class Thought(IntEnum):
    """What a turn is."""

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
    """The outcome, and for each turn what its kind of thought earned.

    The first turn plans: paid where the episode succeeds. A turn behind a failed call reflects: paid where its own
    calls work. Any other that calls explores: paid for a call not made before. An answer has no tag. Calls that cannot
    be read cost `malformed`.

    Args:
        outcome: Says whether the answer is right.
        size: What a kind of thought pays.
        malformed: What a turn with an unreadable call costs.

    Source: Zhang et al. 2025 (RLVMR), arXiv:2507.22844, §3.2; tags by deed instead of by words are ours.
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
