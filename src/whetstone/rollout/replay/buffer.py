"""Replay buffer of trajectories by task, bounded in number; the oldest are removed first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from whetstone.trajectory import OffPolicy, Provenance, Trajectory
from whetstone.trajectory_json import decode_trajectories, encode_trajectory


@dataclass(frozen=True, slots=True)
class Stored:
    """A trajectory and the step it was sampled in."""

    trajectory: Trajectory
    step: int


class Buffer:
    """First in, first out, for each task.

    Args:
        of_each: Maximum number of trajectories per task.
        capacity: Maximum number of trajectories in total.
    """

    def __init__(self, *, of_each: int, capacity: int) -> None:
        self.of_each, self.capacity = of_each, capacity
        self._rows: OrderedDict[str, list[Stored]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def of(self, key: str, *, since: int = 0) -> list[Stored]:
        """Return the trajectories of a task sampled in this step or later, the oldest first."""
        return [row for row in self._rows.get(key, ()) if row.step >= since]

    def add(self, key: str, stored: Stored) -> None:
        """Add a trajectory."""
        rows = self._rows.setdefault(key, [])
        rows.append(stored)
        del rows[: -self.of_each]
        self._rows.move_to_end(key)
        while len(self) > self.capacity:
            oldest = min(self._rows, key=lambda name: self._rows[name][0].step)
            self._rows[oldest].pop(0)
            if not self._rows[oldest]:
                del self._rows[oldest]

    def state(self) -> list[Any]:
        """Return the content as JSON values."""
        return [
            [key, row.step, encode_trajectory(row.trajectory).decode()]
            for key, rows in self._rows.items()
            for row in rows
        ]

    def load_state(self, state: Any) -> None:
        """Restore a state that `state` returned."""
        self._rows.clear()
        for key, step, line in state:
            (trajectory,) = decode_trajectories([line.encode()])
            self._rows.setdefault(key, []).append(Stored(trajectory, step))

    def forget_versions(self) -> None:
        """Mark all trajectories as older than every version of this run."""
        for rows in self._rows.values():
            rows[:] = [replace(row, trajectory=_older(row.trajectory)) for row in rows]


def _older(trajectory: Trajectory) -> Trajectory:
    turns = (replace(t, action=replace(t.action, versions=(-1,) * len(t.action))) for t in trajectory.turns)
    return replace(trajectory, turns=tuple(turns))


def mark_replayed(trajectory: Trajectory, name: str, off_policy: OffPolicy) -> Trajectory:
    """Return a stored trajectory as a member of a group: with a new id, and marked as replayed."""
    return replace(
        trajectory,
        id=f"{name}{trajectory.id}",
        parent=None,
        fork_turn=None,
        removal=None,
        provenance=Provenance.REPLAYED,
        off_policy=off_policy,
    )
