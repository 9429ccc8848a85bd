"""Which tokens of an episode on record can be trained, and why can the rest not?

The file is one of `whetstone serve --record`, or any other of trajectories, a line each.
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
    Author.ENVIRONMENT: "of the world",
}


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """An answer, and what of it can be trained."""

    turn: int
    said: str
    read: int
    """Tokens before it that are new in this turn: prompts, results, and where a segment begins all of it."""
    drawn: int
    trained: int
    versions: tuple[int, ...]
    why: tuple[str, ...]
    """A line for each reason for which something is not trained, or stands apart."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode on record."""

    id: str
    task: str
    reward: float | None
    segments: int
    drawn: int
    trained: int
    why: tuple[str, ...]
    """What is to be known of all of it."""
    turns: tuple[RecordedTurn, ...]


def recorded_episodes(path: Path, episode: str | None = None) -> list[RecordedEpisode]:
    """Those of a file, in order.

    Args:
        episode: That one's alone, by its id or the end of it behind the last stroke.

    Raises:
        DataError: A line is no trajectory, or there is no such episode.
    """
    trajectories = read_trajectories(path, error=DataError, problem=": no trajectory", may_be_incomplete=True)
    found = [t for t in trajectories if episode is None or episode in (t.id, t.id.rpartition("/")[2])]
    if episode is not None and not found:
        raise DataError(f"{path}: has no episode {episode}{did_you_mean(episode, [t.id for t in trajectories])}")
    return [_episode(trajectory) for trajectory in found]


def _episode(trajectory: Trajectory) -> RecordedEpisode:
    turns = tuple(_turn(number, turn) for number, turn in enumerate(trajectory.turns))
    why = []
    if trajectory.removal is not None:
        why.append(f"left out of training: {trajectory.error or trajectory.removal}")
    elif trajectory.score is None:
        why.append("nobody said what it was worth: its words can be imitated, its rewards not learned from")
    if "replaced" in trajectory.marks:
        why.append("what the policy had said where a person took over; worth -1")
    if "intervened" in trajectory.marks:
        why.append("a person took over in it")
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
    said = turn.message.text or ", ".join(call.name for call in turn.message.tool_calls)
    action, why = turn.action, []
    trained = [
        author in TRAINABLE or (author is Author.INSERTED and not math.isnan(logprob))
        for author, logprob in zip(action.authors, action.logprobs, strict=True)
    ]
    left = Counter(author for author, is_trained in zip(action.authors, trained, strict=True) if not is_trained)
    why += [f"{count} not trained: {_UNTRAINED.get(author, author)}" for author, count in left.items()]
    unknown = sum(math.isnan(p) for p, is_trained in zip(action.logprobs, trained, strict=True) if is_trained)
    if unknown:
        why.append(f"{unknown} without a log-prob of who drew them: their ratio begins at 1")
    if turn.opens_segment and number:
        why.append("in a segment of its own: what was sent did not go on, word for word, from the answer before it")
    versions = tuple(sorted({version for version in action.versions if version >= 0}))
    return RecordedTurn(number, said, len(turn.context), len(action), sum(trained), versions, tuple(why))
