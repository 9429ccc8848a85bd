"""Report of the training data of a live run: per answer, its reward, its update and its trained tokens.

Note:
    The run may write while this module reads. Nothing is repaired here, and an incomplete last line is ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whetstone.errors import RunDirectoryError, did_you_mean
from whetstone.serving.online.feedback_journal import LearningJournal
from whetstone.serving.online.turns import JudgedTurn, TurnStore
from whetstone.trajectory import Author, Trajectory

_IMITATED = "imitated: not sampled, so that there is no log-prob and the initial ratio is 1"


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """Tokens of one answer, written by the policy or by a person."""

    said: str
    """Text of the tokens."""
    by: str
    """`policy`, or the name of the person."""
    count: int
    """Number of tokens."""
    trained: bool
    """Whether the tokens are trained on."""
    why: str
    """Reason why the tokens are trained or not."""


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """Summary of one judged answer, as `whetstone why` lists it."""

    number: int
    """Index among all judged answers."""
    episode: str
    """Id of the episode in records."""
    answer: int
    """Index of the answer in its episode, from 0."""
    learned_as: str
    """`demonstration`, `preference` or `reward` for an intervention; otherwise `judged`."""
    by: str
    """Name of the person who took over; empty if there is none."""
    reward: float
    """Reward of the answer."""
    hint: str
    """Hint of the feedback; empty without a hint."""
    why: str
    """Short reason of the judgement."""
    update: int | None
    """Step in which it was first trained on; None: not yet, or never."""
    state: str
    """`learned`, `waits`, or `held`: until it is approved, or permanently if it is rejected."""
    tokens: tuple[TokenSummary, ...]
    """Tokens of the answer, and of the replaced answer of an intervention."""


def live_turns(run_dir: Path, episode: str | None = None) -> list[TurnSummary]:
    """Summarize the judged answers of a live run, in the order of their judgement.

    Args:
        run_dir: Run directory of `whetstone live`.
        episode: Id of an episode, to which the result is limited; None: all episodes.

    Raises:
        RunDirectoryError: The run cannot be read, or has no stored turns of the episode.
    """
    folder = run_dir / "live"
    journal = LearningJournal(folder / "journal.jsonl", mend=False)
    store = TurnStore(folder / "episodes", mend=False)
    if episode is not None and episode not in store.episodes:
        raise RunDirectoryError(
            f"{run_dir}: no stored turns of an episode {episode}{did_you_mean(episode, store.episodes)}"
        )
    names = list(store.episodes) if episode is None else [episode]
    numbers = sorted(number for name in names for number in store.episodes[name])
    return [_summarize_turn(turn, journal) for turn in store.get_turns(numbers)]


def _summarize_turn(turn: JudgedTurn, journal: LearningJournal) -> TurnSummary:
    over = turn.intervention
    update = journal.learned.get(turn.number, ("", None))[1]
    state = "learned" if update is not None else "waits" if turn.number in journal.waiting else "held"
    return TurnSummary(
        turn.number,
        turn.episode,
        turn.answer,
        over.learned_as if over is not None else "judged",
        over.by if over is not None else "",
        turn.feedback.reward,
        turn.feedback.hint,
        turn.feedback.why,
        update,
        state,
        tuple(_tokens(turn)),
    )


def _tokens(turn: JudgedTurn) -> Sequence[TokenSummary]:
    over, reward = turn.intervention, turn.feedback.reward
    if over is None:
        hinted = ", and by the hint" if turn.hinted else ""
        return [_summarize_tokens(turn.trajectory, "policy", f"by its reward {reward:+g}{hinted}")]
    if over.learned_as == "reward":
        return [
            _summarize_tokens(turn.trajectory, "policy", f"by the intervention, {reward:+g}"),
            _summarize_tokens(
                over.other, over.by, "worth 0, which is above the mean: data without log-probs of a sampler"
            ),
        ]
    if over.learned_as == "preference":
        return [
            _summarize_tokens(turn.trajectory, over.by, "the better of a pair, without log-probs of a sampler"),
            _summarize_tokens(over.other, "policy", "the worse of a pair"),
        ]
    return [
        _summarize_tokens(turn.trajectory, over.by, _IMITATED),
        _summarize_tokens(over.other, "policy", "", "stored for comparison with the person's message"),
    ]


def _summarize_tokens(trajectory: Trajectory, by: str, trained: str, untrained: str = "") -> TokenSummary:
    (turn,) = trajectory.turns
    text = turn.message.text or ", ".join(call.name for call in turn.message.tool_calls)
    forced = Counter(turn.action.authors)[Author.INSERTED]
    known = sum(not math.isnan(logprob) for logprob in turn.action.logprobs)
    forced_note = f"; {forced} forced ones are not trained" if forced and trained else ""
    of_sampler = f"; {known} with their sampler's log-prob" if known else ""
    return TokenSummary(text, by, len(turn.action), bool(trained), f"{trained or untrained}{of_sampler}{forced_note}")
