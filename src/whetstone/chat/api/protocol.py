"""Interface of an API format for a server: how requests are parsed, and how responses and streams are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError


class Stream(Protocol):
    """Server-sent events of one request, each with the blank line that ends it."""

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield the events at the start of `count` answers to a prompt of `prompt_tokens` tokens."""
        ...

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield the events of further text of an answer, counted from 0."""
        ...

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield the events of the remaining text, the finish reason and the usage of each answer."""
        ...

    def write_error(self, error: RefusedError) -> str:
        """Return the event of an error after the status was sent."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """One API format."""

    id: str
    """Prefix of response ids."""
    parse: Callable[[Mapping[str, Any]], CompletionRequest]
    """Parses a request; raises `RefusedError`."""
    render: Callable[[str, str, Sequence[CompletionResponse], Mapping[str, Any], Any], dict[str, Any]]
    """(id, model, answers, request, tokenizer) → complete response. The tokenizer is needed only for token ids."""
    stream: Callable[[str, str, Mapping[str, Any], Any], Stream]
    """(id, model, request, tokenizer) → the same as events."""
    error: Callable[[RefusedError], dict[str, Any]]
    request: Mapping[str, Any]
    """JSON schema of a request."""
