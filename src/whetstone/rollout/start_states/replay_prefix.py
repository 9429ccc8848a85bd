"""Start states from stored successes of the policy.

Note:
    A state can be used only if the environment can be brought into it again. If replayed turns have other observations
    now, the episode is marked `not_forked` and starts from the reset state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Demonstrator, EpisodeKey, StartPrefix, StepOutcome
from whetstone.rollout.replay.buffer import Buffer, StoredTrajectory
from whetstone.rollout.start_states.expert_prefix import as_untrained_turns, start_fraction
from whetstone.rollout.task_keys import on_policy_trajectories


class ReplayPrefix:
    """Starts groups of solved tasks after the first turns of a stored success (SnapshotRL).

    The prefix becomes shorter over training. Tasks that were never solved start from the reset state, as does every
    task after `anneal_updates` updates. The turns of the prefix are read and not trained.

    Source: SnapshotRL 2024, arXiv:2403.00673; the form for language agents is an addition.

    Args:
        anneal_updates: Number of updates until every episode starts from the reset state.
        max_per_task: Maximum number of stored successes per task.
        capacity: Maximum number of stored successes in total.
    """

    def __init__(self, *, anneal_updates: int, max_per_task: int = 2, capacity: int = 512) -> None:
        if anneal_updates < 1:
            raise OptionError("anneal_updates", f"must be at least 1 update, got {anneal_updates}")
        if max_per_task < 1 or capacity < max_per_task:
            raise OptionError("capacity", f"must be at least max_per_task ({max_per_task}), got {capacity}")
        self.anneal_updates = anneal_updates
        self.buffer = Buffer(max_per_key=max_per_task, capacity=capacity)

    async def __call__(self, episode_key: EpisodeKey, demonstrator: Demonstrator, /) -> StartPrefix | None:
        """Return the turns that precede the episodes of a group, or None; see `Start.__call__`."""
        share = start_fraction(episode_key.step, self.anneal_updates)
        draw = episode_key.random("start")
        stored = self.buffer.get_trajectories(episode_key.task.id)
        if not stored or draw.random() >= share:
            return None
        turns = draw.choice(stored).trajectory.turns
        count = math.ceil(share * (len(turns) - 1))
        if count < 1:
            return None
        return StartPrefix(as_untrained_turns(turns[:count]), episode_key.seed)

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store the successes of a step whose history was not modified."""
        for group in outcome.groups:
            for trajectory in on_policy_trajectories(group):
                is_unmodified = not any(turn.aside or turn.training_context is not None for turn in trajectory.turns)
                if trajectory.solved and is_unmodified and not any(turn.opens_segment for turn in trajectory.turns[1:]):
                    self.buffer.add(group.task.id, StoredTrajectory(trajectory, outcome.step))

    def state(self) -> dict[str, Any]:
        """Return the stored successes for a checkpoint."""
        return {"stored": self.buffer.state()}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stored successes of a checkpoint."""
        self.buffer.load_state(state["stored"])

    def forget_versions(self) -> None:
        """Mark the stored trajectories as older than every version of this run."""
        self.buffer.forget_versions()
