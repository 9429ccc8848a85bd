"""Replay buffer of trajectories by task, bounded in number; the oldest are removed first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from whetstone.trajectory import OffPolicy, Provenance, Trajectory
from whetstone.trajectory_json import decode_trajectories, encode_trajectory


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """Trajectory in a replay buffer."""

    trajectory: Trajectory
    step: int
    """Number of updates when the trajectory was observed."""


class Buffer:
    """Replay buffer with a first-in, first-out queue of trajectories per key, such as a task id.

    Args:
        max_per_key: Maximum number of trajectories per key.
        capacity: Maximum number of trajectories in total.
    """

    def __init__(self, *, max_per_key: int, capacity: int) -> None:
        self.max_per_key, self.capacity = max_per_key, capacity
        self._rows: OrderedDict[str, list[StoredTrajectory]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def get_trajectories(self, key: str, *, since: int = 0) -> list[StoredTrajectory]:
        """Return the stored trajectories of a key, the oldest first.

        Args:
            key: Key under which the trajectories were added.
            since: Minimum `step` of the returned trajectories.
        """
        return [row for row in self._rows.get(key, ()) if row.step >= since]

    def add(self, key: str, stored: StoredTrajectory) -> None:
        """Add a trajectory; the oldest ones of the key, then of the buffer, are removed if a maximum is exceeded."""
        rows = self._rows.setdefault(key, [])
        rows.append(stored)
        del rows[: -self.max_per_key]
        self._rows.move_to_end(key)
        while len(self) > self.capacity:
            oldest = min(self._rows, key=lambda name: self._rows[name][0].step)
            self._rows[oldest].pop(0)
            if not self._rows[oldest]:
                del self._rows[oldest]

    def state(self) -> list[Any]:
        """Return the stored trajectories as JSON values, for a checkpoint."""
        return [
            [key, row.step, encode_trajectory(row.trajectory).decode()]
            for key, rows in self._rows.items()
            for row in rows
        ]

    def load_state(self, state: Any) -> None:
        """Replace the content by a state that `state` returned."""
        self._rows.clear()
        for key, step, line in state:
            (trajectory,) = decode_trajectories([line.encode()])
            self._rows.setdefault(key, []).append(StoredTrajectory(trajectory, step))

    def forget_versions(self) -> None:
        """Mark all tokens as sampled before every version of this run, after a state of another run was loaded."""
        for rows in self._rows.values():
            rows[:] = [replace(row, trajectory=_older(row.trajectory)) for row in rows]


def _older(trajectory: Trajectory) -> Trajectory:
    turns = (replace(t, action=replace(t.action, versions=(-1,) * len(t.action))) for t in trajectory.turns)
    return replace(trajectory, turns=tuple(turns))


def mark_replayed(trajectory: Trajectory, name: str, off_policy: OffPolicy) -> Trajectory:
    """Return a stored trajectory as a member of a new group: with a new id and the provenance `REPLAYED`.

    Args:
        trajectory: Stored trajectory.
        name: Prefix of the new id.
        off_policy: Log-probs that its ratios are computed against.
    """
    return replace(
        trajectory,
        id=f"{name}{trajectory.id}",
        parent=None,
        fork_turn=None,
        removal=None,
        provenance=Provenance.REPLAYED,
        off_policy=off_policy,
    )
