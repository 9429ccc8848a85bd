"""Completion requests and responses in a form that is common to all API formats."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.chat.message import Image, Message, Text, ToolSpec


class RefusedError(Exception):
    """Rejection of a request; each API format converts it into an error response.

    Args:
        message: Problem and remedy, in one line.
        status: HTTP status.
        param: Field of the request that is invalid; None if the problem is in no single field.
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
    """Completion request after parsing, independent of the API format."""

    messages: tuple[Message, ...]
    """Conversation to continue; empty if `prompt` is given."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call."""
    max_tokens: int | None = None
    """Maximum number of sampled tokens; None: the rest of the context."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    top_p: float = 1.0
    """Probability mass of nucleus sampling, in (0, 1]."""
    stop: tuple[str, ...] = ()
    """Texts at which generation stops; at most 16."""
    seed: int | None = None
    """Random seed; None: a new seed for each request."""
    count: int = 1
    """Number of answers to sample (`n`)."""
    must_call: str | None = None
    """Name of the tool that the answer must call; empty: any tool; None: no call is required."""
    one_call: bool = False
    """Whether a turn ends after its first call, because the client forbids parallel calls."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Number added to the logit of each token id; −inf forbids the token."""
    top_k: int = 0
    """Number of most likely tokens to sample from; 0: all."""
    top_logprobs: int = 0
    """Number of most likely tokens to return for each position."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the answer must satisfy; None: unrestricted."""
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids that the model continues without a chat template; None: `messages` are used."""

    @property
    def num_characters(self) -> int:
        """Number of characters in messages, calls, tools and prompt, to estimate the work.

        A token id counts as one.
        """
        texts = [part.text for message in self.messages for part in message.content if isinstance(part, Text)]
        texts += [call.arguments for message in self.messages for call in message.tool_calls]
        texts += [text for tool in self.tools for text in (tool.description, str(tool.parameters))]
        return sum(map(len, texts)) + len(self.prompt or ())


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """Answer of the model to a completion request."""

    message: Message
    """Assistant message that the client receives, without the thought."""
    thought: str = ""
    """Thought before the message, without tags; empty if there is none."""
    ids: tuple[int, ...] = ()
    """[T] sampled token ids; empty if unknown."""
    logprobs: tuple[float, ...] = ()
    """[T] log-probs under the model, or under the sampling distribution if the engine returns no others; NaN: unknown.
    """
    finish: str = "stop"
    """Finish reason: `stop`, `length` or `tool_calls`."""
    prompt_tokens: int = 0
    """Number of tokens in the prompt."""
    stopped_by: str = ""
    """Text of `CompletionRequest.stop` that ended the answer; empty if it ended otherwise."""
    tops: tuple[Mapping[int, float], ...] = ()
    """[T] most likely token ids at each position with their log-probs, in descending order; empty if not requested."""


def json_number(logprob: float) -> float:
    """Return a log-prob as a number that JSON can represent: −inf and NaN become -9999, as in OpenAI's APIs."""
    return -9999.0 if math.isnan(logprob) else max(logprob, -9999.0)


def comparison_key(message: Message) -> list[object]:
    """Return a key for messages that is equal if a client sends back the same message.

    Clients add fields, drop empty ones and reformat arguments, so text is stripped and arguments are compared as JSON.
    An image is represented by the hash of its URL.
    """
    parts = [part.text.strip() if isinstance(part, Text) else _picture(part) for part in message.content]
    calls = [(call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls]
    return [message.role, [part for part in parts if part], calls, message.tool_call_id]


def split_thinking(message: Message) -> tuple[str, Message]:
    """Split an assistant message at `</think>` into the thought, without tags, and the message without it."""
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
