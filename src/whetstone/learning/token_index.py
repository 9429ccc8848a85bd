"""Index of a trajectory's action tokens: by segment for training, and turn by turn for credit.

Note:
    A turn that is trained in another context has a separate segment, after segments of later turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whetstone.trajectory import Author, Group, Segment, Trajectory

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexedTrajectory:
    """Trajectory of a batch with the index of its A action tokens, turn by turn."""

    group: Group
    """Group of the trajectory."""
    number: int
    """Index of the group in the batch."""
    trajectory: Trajectory
    segments: tuple[Segment, ...]
    """Segments of the trajectory."""
    segment: Places
    """[A] index of the segment of each action token, turn by turn."""
    place: Places
    """[A] position of each action token in its segment."""
    turn: Places
    """[A] index of each action token's turn."""
    order: Places
    """[A] index of each action token in the order of the segments."""

    @classmethod
    def of(cls, group: Group, number: int, trajectory: Trajectory, *, observations: bool = False) -> IndexedTrajectory:
        """Index the action tokens of a trajectory.

        Args:
            group: Group of the trajectory.
            number: Index of the group in the batch.
            trajectory: Trajectory.
            observations: Whether observations are trained on too; see `Trajectory.segments`.
        """
        segments = trajectory.segments(observations=observations)
        lying = [np.flatnonzero(s.action_mask[1:]) + 1 for s in segments]  # nothing predicts the first
        place = np.concatenate([*lying, np.empty(0, dtype=np.int64)])
        segment = np.repeat(np.arange(len(segments)), [len(at) for at in lying])
        turns = [np.asarray(s.turns)[at] for s, at in zip(segments, lying, strict=True)]
        turn = np.concatenate([*turns, np.empty(0, dtype=np.int64)])
        order = np.argsort(turn, kind="stable")
        return cls(group, number, trajectory, segments, segment[order], place[order], turn[order], order)

    def __len__(self) -> int:
        return len(self.place)


def index_groups(groups: Sequence[Group], *, observations: bool = False) -> list[IndexedTrajectory]:
    """Index the action tokens of all trajectories that count in statistics, group by group.

    Args:
        groups: Groups of the step.
        observations: Whether observations are trained on too (`reinforcement.train_on_observations`).
    """
    return [
        IndexedTrajectory.of(group, number, trajectory, observations=observations)
        for number, group in enumerate(groups)
        for trajectory in group.counted
    ]


def observed_fraction(trajectories: Sequence[IndexedTrajectory]) -> float:
    """Return the fraction of trained tokens that the environment wrote, in [0, 1]; 0 without tokens."""
    authors = [
        each.segments[k].tokens.authors[place]
        for each in trajectories
        for k, place in zip(each.segment.tolist(), each.place.tolist(), strict=True)
    ]
    return authors.count(Author.ENVIRONMENT) / max(1, len(authors))
