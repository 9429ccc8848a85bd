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

    Tasks never solved start from the initial state, as does every task after `anneal_updates` updates. The turns of the
    prefix are read and not trained.

    Source: SnapshotRL 2024, arXiv:2403.00673; the form for language agents is ours.

    Args:
        anneal_updates: Number of updates until every episode starts from the initial state.
        max_per_task: Maximum number of stored successes per task.
        capacity: Successes kept in all.
    """

    def __init__(self, *, anneal_updates: int, max_per_task: int = 2, capacity: int = 512) -> None:
        if anneal_updates < 1:
            raise OptionError("anneal_updates", f"one update or more, got {anneal_updates}")
        if max_per_task < 1 or capacity < max_per_task:
            raise OptionError("capacity", f"max_per_task ({max_per_task}) or more, got {capacity}")
        self.anneal_updates = anneal_updates
        self.buffer = Buffer(of_each=max_per_task, capacity=capacity)

    async def __call__(self, occasion: EpisodeKey, guide: Demonstrator, /) -> StartPrefix | None:
        """See `Start`."""
        share = share_started(occasion.step, self.anneal_updates)
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
