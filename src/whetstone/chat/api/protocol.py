"""What does a server know of a dialect of the wire? How a request is read, and how answers are told in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whetstone.chat.api.asked import Answer, Asked, RefusedError


class Stream(Protocol):
    """The events of one request, each with the blank line that ends it."""

    def opened(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """So many answers are begun behind so many tokens."""
        ...

    def more(self, number: int, text: str) -> Iterator[str]:
        """Some text of an answer, counted from 0."""
        ...

    def ended(self, answers: Sequence[Answer]) -> Iterator[str]:
        """What was held back of each answer, why it ended, what it took."""
        ...

    def failed(self, error: RefusedError) -> str:
        """It went wrong when the status was sent already."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """One dialect."""

    id: str
    """What ids of its answers begin with."""
    asked: Callable[[Mapping[str, Any]], Asked]
    """What a request asks for; raises `RefusedError`."""
    whole: Callable[[str, str, Sequence[Answer], Mapping[str, Any], Any], dict[str, Any]]
    """(id, model, answers, request, tokenizer) → what is told at once. Without ids of tokens no tokenizer is needed."""
    stream: Callable[[str, str, Mapping[str, Any], Any], Stream]
    """(id, model, request, tokenizer) → the same, event by event."""
    error: Callable[[RefusedError], dict[str, Any]]
    request: Mapping[str, Any]
    """The JSON schema of a request."""
