"""Where do a trajectory's action tokens lie? In segments; and turn by turn, as credit is given.

Easy to get wrong: a turn that is trained under another context stands in a segment of its own, behind turns that came
after it.
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
    """One trajectory of the batch."""

    group: Group
    number: int
    """Of its group in the batch."""
    trajectory: Trajectory
    segments: tuple[Segment, ...]
    segment: Places
    """[A] which segment each of its action tokens lies in, turn by turn."""
    place: Places
    """[A] where there."""
    turn: Places
    """[A] which turn it belongs to."""
    order: Places
    """[A] which it is among the action tokens of all segments, one segment behind the other."""

    @classmethod
    def of(cls, group: Group, number: int, trajectory: Trajectory, *, observations: bool = False) -> IndexedTrajectory:
        """A trajectory with its tokens in order; see `Trajectory.segments` for observations."""
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
    """The trajectories of each group that enter statistics, numbered by their group's place.

    Args:
        observations: Whether what tools answered is trained as well (`reinforcement.train_on_observations`).
    """
    return [
        IndexedTrajectory.of(group, number, trajectory, observations=observations)
        for number, group in enumerate(groups)
        for trajectory in group.counted
    ]


def observed_fraction(held: Sequence[IndexedTrajectory]) -> float:
    """Which share of the tokens that are trained the environment wrote; 0 where none is trained."""
    authors = [
        each.segments[k].tokens.authors[place]
        for each in held
        for k, place in zip(each.segment.tolist(), each.place.tolist(), strict=True)
    ]
    return authors.count(Author.ENVIRONMENT) / max(1, len(authors))
