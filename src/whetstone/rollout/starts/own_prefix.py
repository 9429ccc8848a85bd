"""Begin where an own success of before came through, so that the way from there is learned first.

Easy to get wrong: a state is only a state where the world can be brought there again; what answers differently now is
marked `not_forked` and begins at the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Demonstrator, EpisodeKey, StartPrefix, StepOutcome
from whetstone.rollout.replay.buffer import Buffer, Stored
from whetstone.rollout.starts.expert_prefix import share_started, spliced
from whetstone.rollout.task_keys import own


class OwnPrefix:
    """Groups of tasks that were solved before begin in the middle of such a success, late ones first (SnapshotRL).

    Tasks never solved, and everything from `until` updates on, begin at the beginning. The turns in front are read and
    not trained.

    Source: SnapshotRL 2024, arXiv:2403.00673; the form for language agents is ours.

    Args:
        until: Updates after which every episode begins at the beginning.
        of_each: Successes kept of a task.
        capacity: Successes kept in all.
    """

    def __init__(self, *, until: int, of_each: int = 2, capacity: int = 512) -> None:
        if until < 1:
            raise OptionError("until", f"one update or more, got {until}")
        if of_each < 1 or capacity < of_each:
            raise OptionError("capacity", f"of_each ({of_each}) or more, got {capacity}")
        self.until = until
        self.buffer = Buffer(of_each=of_each, capacity=capacity)

    async def __call__(self, occasion: EpisodeKey, guide: Demonstrator, /) -> StartPrefix | None:
        """See `Start`."""
        share = share_started(occasion.step, self.until)
        draw = occasion.random("start")
        stored = self.buffer.of(occasion.task.id)
        if not stored or draw.random() >= share:
            return None
        turns = draw.choice(stored).trajectory.turns
        count = math.ceil(share * (len(turns) - 1))
        if count < 1:
            return None
        return StartPrefix(spliced(turns[:count]), occasion.seed)

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        for group in heard.groups:
            for trajectory in own(group):
                whole = not any(turn.aside or turn.training_context is not None for turn in trajectory.turns)
                if trajectory.solved and whole and not any(turn.opens_segment for turn in trajectory.turns[1:]):
                    self.buffer.add(group.task.id, Stored(trajectory, heard.step))

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"stored": self.buffer.state()}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.buffer.load_state(state["stored"])

    def forget_versions(self) -> None:
        """See `KeepsDrawn`."""
        self.buffer.forget_versions()
