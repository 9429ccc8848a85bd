"""Preference data: pairs of answers and rated single answers, as groups that a learner compares within.

    {"prompt": …, "chosen": …, "rejected": …}       texts, or lists of messages; without `prompt` whole conversations
    {"prompt": …, "completion": …, "label": true}   rated singles; a whole conversation instead of prompt and completion

Each row is a group: the better episode has reward 1, the other one 0. The messages that both have in common are
context; the messages after them are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Chat, ToolSpec
from whetstone.data.conversations import Conversation, all_assistant_turns, check_conversation
from whetstone.data.dataset_formats import CONVERSATIONS, NormalMessage, RowReader
from whetstone.data.demonstrations import tokenize_conversation
from whetstone.data.row_readers import Row
from whetstone.data.shuffle import ShuffledIndices
from whetstone.trajectory import Group, Score, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Preference:
    """One row: answers to the same prompt, each with its value."""

    where: str
    """Place in the data file, such as `pairs.jsonl:7`."""
    answers: tuple[tuple[Conversation, float], ...]
    """(whole conversation, 1 or 0); two of a pair, one of a rated single."""
    shared: int
    """Number of messages that are context of every answer."""

    @property
    def is_trained(self) -> bool:
        """Whether every answer has a turn that can be trained."""
        return all(conversation.get_trained_turns(all_assistant_turns) for conversation, _ in self.answers)


def read_preference(row: Row, offered: tuple[ToolSpec, ...] = ()) -> Preference:
    """Read the pair, or the rated single, of a row.

    Args:
        row: The row, in any dataset format.
        offered: Tools of a row that does not declare tools.

    Raises:
        DataError: The row has neither, or the two answers are equal.
    """
    reader = RowReader(row)
    columns = reader.columns
    if {"chosen", "rejected"} <= row.columns.keys() and not columns.keys().isdisjoint(("chosen", "rejected")):
        name = next((name for name in ("prompt", *CONVERSATIONS) if name in columns), "prompt")
        prompt = reader.read_messages(name, role="user", is_context=True)
        sides = [(_read_answer(reader, side, prompt, is_prompt=name == "prompt"), value)
                 for side, value in (("chosen", 1.0), ("rejected", 0.0))]  # fmt: skip
        shared = len(prompt)
    elif "label" in columns:
        rated = reader.read_conversation()
        is_answer = [each.path.startswith("completion") for each in rated]
        last = max((k for k, each in enumerate(rated) if each.message.role in ("system", "user")), default=-1)
        shared = is_answer.index(True) if any(is_answer) else last + 1
        sides = [(rated, float(reader.read_label()))]
    else:
        raise row.error('no pair ("chosen" and "rejected") and no rated single ("prompt", "completion" and "label")')
    tools = reader.read_tools(offered)
    answers = tuple(
        (check_conversation(reader, reader.add_system_message(each), tools), value) for each, value in sides
    )
    if len(answers) == 2:
        (better, _), (worse, _) = answers
        if better.messages == worse.messages:
            raise row.error("chosen and rejected are equal, so neither is better")
        pairs = zip(better.messages, worse.messages, strict=False)
        shared = next((k for k, (a, b) in enumerate(pairs) if a != b), min(map(len, (better.messages, worse.messages))))
    if not shared:
        raise row.error("the two answers have no messages in common at their start")
    return Preference(row.where, tuple((_exclude_shared(each, shared), value) for each, value in answers), shared)


def _exclude_shared(conversation: Conversation, shared: int) -> Conversation:
    """Return a conversation whose first messages are context."""
    reasons = [
        reason or ("prompt" if place < shared and message.role == "assistant" else "")
        for place, (message, reason) in enumerate(zip(conversation.messages, conversation.exclusions, strict=True))
    ]
    return replace(conversation, exclusions=tuple(reasons))


def _read_answer(
    reader: RowReader, side: str, prompt: Sequence[NormalMessage], *, is_prompt: bool
) -> list[NormalMessage]:
    """Read one side of a pair as a whole conversation.

    Args:
        reader: The row.
        side: Name of the column.
        prompt: Messages before the answer, unless the column contains them.
        is_prompt: Whether the prompt has its own column.
    """
    own = reader.read_messages(side, role="assistant")
    messages, context = [each.message for each in own], [each.message for each in prompt]
    start = next((k for k, message in enumerate(messages) if message.role == "assistant"), len(messages))
    is_whole = context in (messages[: len(context)], messages[:start][-len(context) :])
    if is_whole or (start > 0 and not is_prompt):
        return own
    return [*prompt, *own]


class Preferences:
    """A `GroupSource` of pairs in shuffled order, repeated endlessly.

    Args:
        pairs: The pairs, or rated singles.
        chat: Tokenizer and chat template.
        context_length: Maximum number of tokens of an answer with its prompt.
        seed: Seed of the order.
        steps: Whether the two of a pair share the turns of their common prefix: for objectives that compare turns with
            the same history.
    """

    def __init__(
        self, pairs: Sequence[Preference], chat: Chat, *, context_length: int, seed: int = 0, steps: bool = False
    ) -> None:
        self._pairs, self._chat, self._context_length, self._steps = pairs, chat, context_length, steps
        self._order = ShuffledIndices(len(pairs), seed=seed)

    async def groups(self, first: int, count: int, /) -> list[Group]:
        """Return `count` pairs as groups, from position `first` of the shuffled order; see `GroupSource.groups`.

        A pair that cannot be trained has no scores.
        """
        chosen = [self._pairs[self._order[position]] for position in range(first, first + count)]
        return [Group(Task(each.where, ""), self.tokenize_answers(each)) for each in chosen]

    def tokenize_answers(self, preference: Preference) -> tuple[Trajectory, ...]:
        """Tokenize the answers of a pair as trajectories; no answer has a score if one of them cannot be trained."""
        answers = [self._answer(preference, number) for number in range(len(preference.answers))]
        if any(each.score is None for each in answers):  # one answer without the other has no preference
            answers = [replace(each, score=None) for each in answers]
        if self._steps and len(answers) == 2:
            answers = [answers[0], _going_on_from(*answers)]
        return tuple(answers)

    def iterate_episodes(self) -> Iterator[Trajectory]:
        """Yield every answer once, in the order of the rows."""
        for preference in self._pairs:
            for number in range(len(preference.answers)):
                yield self._answer(preference, number)

    def _answer(self, preference: Preference, number: int) -> Trajectory:
        conversation, value = preference.answers[number]
        episode = tokenize_conversation(conversation, self._chat, context_length=self._context_length)
        score = Score(value, success=value > 0) if episode.score is not None else None
        return replace(episode, id=f"{preference.where}#{number}", score=score)


def _going_on_from(one: Trajectory, other: Trajectory) -> Trajectory:
    """Return the second trajectory, with the turn objects of the first in their common prefix."""
    pairs = zip(one.turns, other.turns, strict=False)
    parted = (k for k, (a, b) in enumerate(pairs) if _turn_key(a) != _turn_key(b))
    num_shared = next(parted, min(len(one.turns), len(other.turns)))
    return replace(other, turns=(*one.turns[:num_shared], *other.turns[num_shared:]))


def _turn_key(turn: Turn) -> object:
    return turn.context.sequence, turn.action.sequence, turn.observation
