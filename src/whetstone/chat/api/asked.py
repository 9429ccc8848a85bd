"""What does a client ask for, and what is it told? The same for every dialect of the wire."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.chat.message import Image, Message, Text, ToolSpec


class RefusedError(Exception):
    """A request that cannot be answered, in the words and the status an API of this kind uses.

    Args:
        message: What is wrong, and the nearest right thing.
        param: The field of the request.
        code: A word for programs, such as `context_length_exceeded`.
        after: Seconds after which it may be asked again; None: nothing is said of that.
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
class Asked:
    """One completion of a conversation."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """None: as many as the context has room for."""
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """None: another draw each time."""
    count: int = 1
    """Answers to the same."""
    must_call: str | None = None
    """The tool it has to call; empty: any of them; None: it need not."""
    one_call: bool = False
    """Whether a turn is over behind its first call."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_k: int = 0
    """Only the likeliest so many are drawn from; 0: all."""
    top_logprobs: int = 0
    """How many of the likeliest tokens are to be named at each place."""
    schema: Mapping[str, Any] | None = None
    """What the answer has to be JSON of; None: anything."""
    prompt: str | tuple[int, ...] | None = None
    """What is gone on from instead of messages, as it stands: a text, or ids of tokens."""

    @property
    def characters(self) -> int:
        """Length of all text that the model reads: messages, calls, tools and prompt; of ids, their number."""
        texts = [part.text for message in self.messages for part in message.content if isinstance(part, Text)]
        texts += [call.arguments for message in self.messages for call in message.tool_calls]
        texts += [text for tool in self.tools for text in (tool.description, str(tool.parameters))]
        return sum(map(len, texts)) + len(self.prompt or ())


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said."""

    message: Message
    """As the client is told: without its thinking."""
    thought: str = ""
    """What it thought before; empty where it did not."""
    ids: tuple[int, ...] = ()
    """[T] the tokens it consists of; empty where they are not known."""
    logprobs: tuple[float, ...] = ()
    """[T] of the model itself where the engine says, else of the draw; NaN where there was none."""
    finish: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int = 0
    stopped_by: str = ""
    """The text of `Asked.stop` that ended it; empty where none did."""
    tops: tuple[Mapping[int, float], ...] = ()
    """[T] the likeliest tokens at each place with their log-probs under the model, the likeliest first; empty where
    nobody asked."""


def json_number(logprob: float) -> float:
    """A log-prob as JSON can write it; what was forbidden, or is not known, has the number OpenAI's APIs use."""
    return -9999.0 if math.isnan(logprob) else max(logprob, -9999.0)


def words(message: Message) -> list[object]:
    """What is compared of a message: clients add fields, drop empty ones, and write arguments with other spaces.

    A picture is its content's hash.
    """
    parts = [part.text.strip() if isinstance(part, Text) else _picture(part) for part in message.content]
    calls = [(call.id, call.name, _arguments(call.arguments)) for call in message.tool_calls]
    return [message.role, [part for part in parts if part], calls, message.tool_call_id]


def told(message: Message) -> tuple[str, Message]:
    """(what it thought, the message without that), as a client is told."""
    head, closed, tail = message.text.partition("</think>")
    if not closed:
        return "", message
    said = tail.lstrip("\n")
    return head.strip().removeprefix("<think>").strip(), replace(message, content=(Text(said),) if said else ())


def _picture(image: Image) -> list[str]:
    return ["image", hashlib.sha256(image.url.encode()).hexdigest()]


def _arguments(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
