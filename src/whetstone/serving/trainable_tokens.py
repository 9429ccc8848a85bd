"""Trainable tokens of recorded episodes, and the reasons why other tokens are not trained.

The input is a file of `whetstone serve --record`, or any JSONL file of trajectories.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from whetstone.errors import DataError, did_you_mean
from whetstone.reporting.trajectories import read_trajectories
from whetstone.trajectory import TRAINABLE, Author, Trajectory, Turn

_UNTRAINED = {
    Author.INSERTED: "inserted, not sampled: forced, redacted, or written by a person",
    Author.OTHER_AGENT: "of another model",
    Author.ENVIRONMENT: "of the environment",
}


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One answer of a recorded episode, with the counts of its tokens."""

    turn: int
    """Index of the answer in the episode, from 0."""
    said: str
    """Text of the answer."""
    read: int
    """Number of new context tokens of this turn: prompts and results; the whole context if a segment starts."""
    drawn: int
    """Number of sampled tokens."""
    trained: int
    """Number of tokens that can be trained on."""
    versions: tuple[int, ...]
    """Versions of the weights that sampled the tokens."""
    why: tuple[str, ...]
    """One line per reason why tokens are not trained or a new segment starts."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """Summary of a recorded episode and of its trainable tokens."""

    id: str
    """Id of the trajectory."""
    task: str
    """Name of the task."""
    reward: float | None
    """Outcome reward; None without a score."""
    segments: int
    """Number of segments, each with its own context."""
    drawn: int
    """Number of sampled tokens."""
    trained: int
    """Number of tokens that can be trained on."""
    why: tuple[str, ...]
    """Remarks about the whole episode."""
    turns: tuple[RecordedTurn, ...]
    """Answers in order."""


def recorded_episodes(path: Path, episode: str | None = None) -> list[RecordedEpisode]:
    """Summarize the episodes of a file of `whetstone serve --record`, in order.

    Args:
        path: File of trajectories as JSON lines.
        episode: Only the episode with this id, or with this last part of its id after a slash.

    Raises:
        DataError: A line is not a trajectory, or the episode does not exist.
    """
    trajectories = read_trajectories(path, error=DataError, problem=": not a trajectory", may_be_incomplete=True)
    matches = [t for t in trajectories if episode is None or episode in (t.id, t.id.rpartition("/")[2])]
    if episode is not None and not matches:
        raise DataError(f"{path}: has no episode {episode}{did_you_mean(episode, [t.id for t in trajectories])}")
    return [_episode(trajectory) for trajectory in matches]


def _episode(trajectory: Trajectory) -> RecordedEpisode:
    turns = tuple(_turn(number, turn) for number, turn in enumerate(trajectory.turns))
    why = []
    if trajectory.removal is not None:
        why.append(f"excluded from training: {trajectory.error or trajectory.removal}")
    elif trajectory.score is None:
        why.append("no reward: it can be imitated, but not trained on by reinforcement")
    if "replaced" in trajectory.marks:
        why.append("answer of the policy that a person replaced; reward -1")
    if "intervened" in trajectory.marks:
        why.append("contains a human intervention")
    return RecordedEpisode(
        trajectory.id,
        trajectory.task_id,
        trajectory.score.value if trajectory.score is not None else None,
        sum(turn.opens_segment for turn in trajectory.turns),
        sum(turn.drawn for turn in turns),
        sum(turn.trained for turn in turns),
        tuple(why),
        turns,
    )


def _turn(number: int, turn: Turn) -> RecordedTurn:
    text = turn.message.text or ", ".join(call.name for call in turn.message.tool_calls)
    action, why = turn.action, []
    trained = [
        author in TRAINABLE or (author is Author.INSERTED and not math.isnan(logprob))
        for author, logprob in zip(action.authors, action.logprobs, strict=True)
    ]
    untrained = Counter(author for author, is_trained in zip(action.authors, trained, strict=True) if not is_trained)
    why += [f"{count} not trained: {_UNTRAINED.get(author, author)}" for author, count in untrained.items()]
    unknown = sum(math.isnan(p) for p, is_trained in zip(action.logprobs, trained, strict=True) if is_trained)
    if unknown:
        why.append(f"{unknown} without a log-prob of their sampler: the initial ratio is 1")
    if turn.opens_segment and number:
        why.append("new segment: the request did not continue word for word from the previous answer")
    versions = tuple(sorted({version for version in action.versions if version >= 0}))
    return RecordedTurn(number, text, len(turn.context), len(action), sum(trained), versions, tuple(why))
