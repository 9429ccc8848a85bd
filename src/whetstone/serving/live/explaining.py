"""What was learned from each answer of a live run, by whom, and which of its tokens are trained?

Easy to get wrong: whoever asks may do so while the run writes; so nothing is mended here, and a line that is half
written is left for later.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whetstone.errors import RunDirectoryError, did_you_mean
from whetstone.serving.live.journal import LearningJournal
from whetstone.serving.live.turns import JudgedTurn, TurnStore
from whetstone.trajectory import Author, Trajectory

_IMITATED = "imitated: nobody sampled them, so there is no log-prob and their ratio begins at 1"


@dataclass(frozen=True, slots=True)
class TokensTold:
    """The tokens of one of the two answers in a place."""

    said: str
    by: str
    """`policy`, or the person."""
    count: int
    trained: bool
    why: str
    """Why they are, or are not."""


@dataclass(frozen=True, slots=True)
class TurnTold:
    """A judged answer."""

    number: int
    episode: str
    answer: int
    learned_as: str
    """`demonstration`, `preference`, `reward` of an intervention; `judged` of any other."""
    by: str
    """The person who took over; empty: nobody did."""
    reward: float
    hint: str
    why: str
    update: int | None
    """The step it was first learned from in; None: not yet, or never."""
    state: str
    """`learned`, `waits`, or `held`: for approval, or for ever where it was rejected."""
    tokens: tuple[TokensTold, ...]


def live_turns(run_dir: Path, episode: str | None = None) -> list[TurnTold]:
    """Every answer something was made of, in order.

    Args:
        episode: That one's alone.

    Raises:
        RunDirectoryError: It cannot be read, or there is no such episode.
    """
    folder = run_dir / "live"
    journal = LearningJournal(folder / "journal.jsonl", mend=False)
    store = TurnStore(folder / "episodes", mend=False)
    if episode is not None and episode not in store.episodes:
        raise RunDirectoryError(
            f"{run_dir}: nothing is kept of an episode {episode}{did_you_mean(episode, store.episodes)}"
        )
    names = list(store.episodes) if episode is None else [episode]
    numbers = sorted(number for name in names for number in store.episodes[name])
    return [_told(turn, journal) for turn in store.turns(numbers)]


def _told(turn: JudgedTurn, journal: LearningJournal) -> TurnTold:
    over = turn.intervention
    update = journal.learned.get(turn.number, ("", None))[1]
    state = "learned" if update is not None else "waits" if turn.number in journal.waiting else "held"
    return TurnTold(
        turn.number,
        turn.episode,
        turn.answer,
        over.learned_as if over is not None else "judged",
        over.by if over is not None else "",
        turn.judgement.reward,
        turn.judgement.hint,
        turn.judgement.why,
        update,
        state,
        tuple(_tokens(turn)),
    )


def _tokens(turn: JudgedTurn) -> Sequence[TokensTold]:
    over, reward = turn.intervention, turn.judgement.reward
    if over is None:
        hinted = ", and by the hint" if turn.hinted else ""
        return [_of(turn.trajectory, "policy", f"by its reward {reward:+g}{hinted}")]
    if over.learned_as == "reward":
        return [
            _of(turn.trajectory, "policy", f"by the intervention, {reward:+g}"),
            _of(over.other, over.by, "worth 0, which is above the mean: data without log-probs of a sampler"),
        ]
    if over.learned_as == "preference":
        return [
            _of(turn.trajectory, over.by, "the better of a pair, without log-probs of a sampler"),
            _of(over.other, "policy", "the worse of a pair"),
        ]
    return [_of(turn.trajectory, over.by, _IMITATED), _of(over.other, "policy", "", "kept beside what a person said")]


def _of(trajectory: Trajectory, by: str, trained: str, untrained: str = "") -> TokensTold:
    (turn,) = trajectory.turns
    said = turn.message.text or ", ".join(call.name for call in turn.message.tool_calls)
    forced = Counter(turn.action.authors)[Author.INSERTED]
    known = sum(not math.isnan(logprob) for logprob in turn.action.logprobs)
    beside = f"; {forced} forced ones are read alone" if forced and trained else ""
    of_sampler = f"; {known} with their sampler's log-prob" if known else ""
    return TokensTold(said, by, len(turn.action), bool(trained), f"{trained or untrained}{of_sampler}{beside}")
