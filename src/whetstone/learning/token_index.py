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
    """A trajectory of the batch with the index of its action tokens."""

    group: Group
    number: int
    """Index of its group in the batch."""
    trajectory: Trajectory
    segments: tuple[Segment, ...]
    segment: Places
    """[A] index of the segment of each action token, turn by turn."""
    place: Places
    """[A] position in that segment."""
    turn: Places
    """[A] index of its turn."""
    order: Places
    """[A] index among the action tokens of all segments, in the order of the segments."""

    @classmethod
    def of(cls, group: Group, number: int, trajectory: Trajectory, *, observations: bool = False) -> IndexedTrajectory:
        """Index the tokens of a trajectory; see `Trajectory.segments` for observations."""
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
    """Index the trajectories of each group that enter statistics.

    Args:
        observations: Whether observations are trained on too (`reinforcement.train_on_observations`).
    """
    return [
        IndexedTrajectory.of(group, number, trajectory, observations=observations)
        for number, group in enumerate(groups)
        for trajectory in group.counted
    ]


def observed_fraction(trajectories: Sequence[IndexedTrajectory]) -> float:
    """Return the fraction of trained tokens that the environment wrote; 0 if none."""
    authors = [
        each.segments[k].tokens.authors[place]
        for each in trajectories
        for k, place in zip(each.segment.tolist(), each.place.tolist(), strict=True)
    ]
    return authors.count(Author.ENVIRONMENT) / max(1, len(authors))
