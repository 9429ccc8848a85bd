"""Redaction of trajectories: removes sensitive text from messages and from the tokens that spell them.

Note:
    Tokens spell the messages. If a text changes, its tokens are encoded again; a replaced token was not sampled, has
    no log-prob, and is not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from whetstone.chat import Chat, Message
from whetstone.chat.message import Text
from whetstone.trajectory import Author, Tokens, Trajectory, Turn

Redact = Callable[[str], str]
"""Returns a text without the parts that must not be stored."""


_WORDS = ("content", "text", "arguments", "about", "note")
"""Keys of texts in messages of the OpenAI API and in the queue of the human-in-the-loop page."""


def redacted_words(value: Any, redact: Redact) -> Any:
    """Return nested lists and mappings with texts redacted; names, roles and ids are unchanged."""
    if isinstance(value, Mapping):
        return {
            key: redact(each) if key in _WORDS and isinstance(each, str) else redacted_words(each, redact)
            for key, each in value.items()
        }
    return [redacted_words(each, redact) for each in value] if isinstance(value, list | tuple) else value


class Redacting:
    """Redacts trajectories, for online learning and for redacted copies of stored episodes.

    Args:
        chat: Tokenizer of the trajectories.
        redact: Receives the text of each message, the arguments of each call, and the text of tokens between two
            control tokens. Text that is returned unchanged keeps its tokens; control tokens in a result are dropped.
    """

    def __init__(self, chat: Chat, redact: Redact) -> None:
        self._chat, self.redact = chat, redact
        added = chat.tokenizer.added_tokens_decoder
        self._special = frozenset(id for id, token in added.items() if token.special)

    def __call__(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with redacted messages and tokens."""
        turns = tuple(self._turn(turn) for turn in trajectory.turns)
        return replace(trajectory, opening=tuple(map(self._message, trajectory.opening)), turns=turns)

    def read(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return token ids of a context, which were not sampled, with their text redacted."""
        return self._tokens(Tokens.from_ids(ids, Author.ENVIRONMENT)).ids

    def _turn(self, turn: Turn) -> Turn:
        return replace(
            turn,
            context=self._tokens(turn.context),
            action=self._tokens(turn.action),
            message=self._message(turn.message),
            observation=tuple(map(self._message, turn.observation)),
        )

    def _message(self, message: Message) -> Message:
        content = tuple(
            replace(part, text=self.redact(part.text)) if isinstance(part, Text) else part for part in message.content
        )
        calls = tuple(replace(call, arguments=self.redact(call.arguments)) for call in message.tool_calls)
        return replace(message, content=content, tool_calls=calls)

    def _tokens(self, tokens: Tokens) -> Tokens:
        return Tokens.concatenate(self._stretches(tokens))

    def _stretches(self, tokens: Tokens) -> Iterator[Tokens]:
        is_fixed = [id in self._special for id in tokens.ids]
        for each in tokens.media:
            is_fixed[each.start : each.end] = [True] * each.length
        start = 0
        for fixed, run in groupby(is_fixed):
            end = start + len(list(run))
            yield tokens[start:end] if fixed else self._stretch(tokens[start:end])
            start = end

    def _stretch(self, stretch: Tokens) -> Tokens:
        text = str(self._chat.tokenizer.decode(stretch.ids, skip_special_tokens=False))
        redacted = self.redact(text)
        if redacted == text:
            return stretch
        ids = [id for id in self._chat.encode(redacted) if id not in self._special]
        sampled = any(author is not Author.ENVIRONMENT for author in stretch.authors)
        return Tokens.from_ids(ids, Author.INSERTED if sampled else Author.ENVIRONMENT)
