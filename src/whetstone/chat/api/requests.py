"""Completion requests and answers, common to all API formats."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.chat.message import Image, Message, Text, ToolSpec


class RefusedError(Exception):
    """A request that is rejected, with a message and a status of the API.

    Args:
        message: Problem and remedy.
        status: HTTP status.
        param: Field of the request.
        code: Machine-readable code, such as `context_length_exceeded`.
        after: Seconds after which the client may retry; None: unspecified.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.after = status, param, code, after


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One completion request."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Maximum number of sampled tokens; None: the rest of the context."""
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """Random seed; None: a new one for each request."""
    count: int = 1
    """Number of answers."""
    must_call: str | None = None
    """Name of the required tool; empty: any tool; None: no call is required."""
    one_call: bool = False
    """Whether a turn ends after its first call."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_k: int = 0
    """Number of most likely tokens to sample from; 0: all."""
    top_logprobs: int = 0
    """Number of most likely tokens to return per position."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer; None: unrestricted."""
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids to continue without a template, instead of messages."""

    @property
    def characters(self) -> int:
        """Number of characters that the model reads: messages, calls, tools and prompt.

        Token ids count as one each.
        """
        texts = [part.text for message in self.messages for part in message.content if isinstance(part, Text)]
        texts += [call.arguments for message in self.messages for call in message.tool_calls]
        texts += [text for tool in self.tools for text in (tool.description, str(tool.parameters))]
        return sum(map(len, texts)) + len(self.prompt or ())


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """One answer of the model."""

    message: Message
    """Message as returned to the client: without the thought."""
    thought: str = ""
    """Thought before the message; empty if there is none."""
    ids: tuple[int, ...] = ()
    """[T] token ids; empty if unknown."""
    logprobs: tuple[float, ...] = ()
    """[T] log-probs of the model if the engine returns them, else of the sampling distribution; NaN if unknown."""
    finish: str = "stop"
    """Finish reason: `stop`, `length` or `tool_calls`."""
    prompt_tokens: int = 0
    stopped_by: str = ""
    """Text of `CompletionRequest.stop` that ended the answer; empty if none did."""
    tops: tuple[Mapping[int, float], ...] = ()
    """[T] most likely tokens at each position with their log-probs under the model, in descending order; empty if not
    requested."""


def json_number(logprob: float) -> float:
    """Return a log-prob as JSON can represent it.

    −inf and NaN become -9999, as in OpenAI's APIs.
    """
    return -9999.0 if math.isnan(logprob) else max(logprob, -9999.0)


def comparison_key(message: Message) -> list[object]:
    """Return the comparison key of a message: clients add fields, drop empty ones, and reformat arguments.

    An image is represented by the hash of its content.
    """
    parts = [part.text.strip() if isinstance(part, Text) else _picture(part) for part in message.content]
    calls = [(call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls]
    return [message.role, [part for part in parts if part], calls, message.tool_call_id]


def split_thinking(message: Message) -> tuple[str, Message]:
    """Return (thought, message without the thought) for a client."""
    head, closed, tail = message.text.partition("</think>")
    if not closed:
        return "", message
    text = tail.lstrip("\n")
    return head.strip().removeprefix("<think>").strip(), replace(message, content=(Text(text),) if text else ())


def _picture(image: Image) -> list[str]:
    return ["image", hashlib.sha256(image.url.encode()).hexdigest()]


def _arguments(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
