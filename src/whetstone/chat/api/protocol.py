"""Protocols of an API format: parse requests, and write responses and event streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError


class Stream(Protocol):
    """Writer of the server-sent events of one streamed response.

    `Wire.stream` creates one per request. The server calls `write_start` once, `write_text` for each piece of text, and
    `write_end` or `write_error` at the end. Each event includes the blank line that ends it.
    """

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield the first events of the response, before any text.

        Args:
            count: Number of answers to the request.
            prompt_tokens: Number of tokens in the prompt.
        """
        ...

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield the events for new text of an answer.

        Args:
            number: Index of the answer, from 0.
            text: Text sampled since the previous event of this answer.
        """
        ...

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield the last events: text that was not streamed yet, finish reasons and token usage.

        Args:
            answers: Complete answers, in the order of their indices.
        """
        ...

    def write_error(self, error: RefusedError) -> str:
        """Return the event for an error that occurs after the HTTP status was sent."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """API format of a path: how its requests are parsed, and its responses written."""

    id: str
    """Prefix of response ids, such as `chatcmpl-`."""
    parse: Callable[[Mapping[str, Any]], CompletionRequest]
    """Function from a request body to a `CompletionRequest`; raises `RefusedError` for an invalid request."""
    render: Callable[[str, str, Sequence[CompletionResponse], Mapping[str, Any], Any], dict[str, Any]]
    """Function (id, model, answers, request body, tokenizer) → body of a response that is not streamed.

    The tokenizer is needed only if the request asks for token ids or log-probs.
    """
    stream: Callable[[str, str, Mapping[str, Any], Any], Stream]
    """Function (id, model, request body, tokenizer) → writer of the streamed response."""
    error: Callable[[RefusedError], dict[str, Any]]
    """Function from an error to a response body in this API format."""
    request: Mapping[str, Any]
    """JSON Schema of a request body, published in the OpenAPI document."""
