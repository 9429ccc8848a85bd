"""How do pairs of answers, or rated single ones, become groups a learner compares within?

    {"prompt": …, "chosen": …, "rejected": …}       texts, or lists of messages; without `prompt` whole conversations
    {"prompt": …, "completion": …, "label": true}   rated singles

Each row is a group: the better episode has reward 1, the worse 0. What both begin with is read; what they differ in is
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.chat import Chat, ToolSpec
from whetstone.data.conversations import Conversation, checked, said_by, tools_of
from whetstone.data.demonstrations import written
from whetstone.data.order import Shuffled
from whetstone.data.rows import Row
from whetstone.trajectory import Group, Score, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Preference:
    """One row: answers to the same, each with what it is worth."""

    where: str
    answers: tuple[tuple[Conversation, float], ...]
    """(the whole conversation, 1 or 0); two where they are a pair."""
    shared: int
    """Messages all begin with, which are read and not compared."""


def preference_of(row: Row, offered: tuple[ToolSpec, ...] = ()) -> Preference:
    """The pair, or the rated single, of a row.

    Args:
        offered: Tools of a row that says nothing of tools.

    Raises:
        DataError: It holds none, or the two are equal.
    """
    columns, tools = row.columns, tools_of(row, offered)
    prompt = said_by("user", columns.get("prompt"))
    if "chosen" in columns and "rejected" in columns:
        sides: list[tuple[Any, float]] = [(columns["chosen"], 1.0), (columns["rejected"], 0.0)]
    elif "completion" in columns and "label" in columns:
        if columns["label"] not in (True, False):
            raise row.error(f"label is {columns['label']!r}; true or false is asked for")
        sides = [(columns["completion"], float(columns["label"]))]
    else:
        raise row.error('no pair ("chosen" and "rejected") and no rated single ("prompt", "completion" and "label")')
    answers = []
    for said, worth in sides:
        own = said_by("assistant", said)
        whole = own if own[: len(prompt)] == prompt else [*prompt, *own]
        answers.append((checked(row, whole, tools), worth))
    shared = len(prompt)
    if len(answers) == 2:
        (better, _), (worse, _) = answers
        if better.messages == worse.messages:
            raise row.error("chosen and rejected are equal, so nothing is better")
        pairs = zip(better.messages, worse.messages, strict=False)
        shared = next((k for k, (a, b) in enumerate(pairs) if a != b), min(map(len, (better.messages, worse.messages))))
    if not shared:
        raise row.error("the two have no beginning in common")
    return Preference(row.where, tuple(answers), shared)


class Preferences:
    """Groups of pairs in a shuffled order, again when all were seen.

    Args:
        given: The pairs, or rated singles.
        context_length: Tokens an answer may have with what stands before it.
        seed: Of the order.
        steps: Whether the two of a pair go on from one turn, where they begin alike: for objectives that compare turns
            with those that went on from the same one.
    """

    def __init__(
        self, given: Sequence[Preference], chat: Chat, *, context_length: int, seed: int = 0, steps: bool = False
    ) -> None:
        self._given, self._chat, self._context_length, self._steps = given, chat, context_length, steps
        self._order = Shuffled(len(given), seed=seed)

    def group(self, draw: int) -> Group:
        """The n-th draw; without trajectories that have a score where it cannot be learned from."""
        preference = self._given[self._order[draw]]
        told = [self._answer(preference, number) for number in range(len(preference.answers))]
        if any(each.score is None for each in told):  # half a pair says nothing
            told = [replace(each, score=None) for each in told]
        if self._steps and len(told) == 2:
            told = [told[0], _going_on_from(*told)]
        return Group(Task(preference.where, ""), tuple(told), draw)

    def all(self) -> Iterator[Trajectory]:
        """Every answer once, in the order of the rows."""
        for preference in self._given:
            for number in range(len(preference.answers)):
                yield self._answer(preference, number)

    def _answer(self, preference: Preference, number: int) -> Trajectory:
        conversation, worth = preference.answers[number]
        alone = replace(
            conversation,
            weights=tuple(w and place >= preference.shared for place, w in enumerate(conversation.weights)),
        )
        episode = written(alone, self._chat, context_length=self._context_length)
        score = Score(worth, success=worth > 0) if episode.score is not None else None
        return replace(episode, id=f"{preference.where}#{number}", score=score)


def _going_on_from(one: Trajectory, other: Trajectory) -> Trajectory:
    """The other, with the turns of the one wherever both begin alike."""
    pairs = zip(one.turns, other.turns, strict=False)
    parted = (k for k, (a, b) in enumerate(pairs) if _told(a) != _told(b))
    alike = next(parted, min(len(one.turns), len(other.turns)))
    return replace(other, turns=(*one.turns[:alike], *other.turns[alike:]))


def _told(turn: Turn) -> object:
    return turn.context.ids, turn.action.ids, turn.observation
