"""What does a client ask for, and what is it told? The same for every dialect of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.inference import Sampling
from whetstone.trajectory import Tokens


class RefusedError(Exception):
    """A request that cannot be answered, in the words and the status an API of this kind uses.

    Args:
        message: What is wrong, and the nearest right thing.
        param: The field of the request.
        code: A word for programs, such as `context_length_exceeded`.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


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

    def sampling(self, *, max_tokens: int, seed: int, stop_ids: frozenset[int], forced: tuple[int, ...]) -> Sampling:
        """How its tokens are drawn.

        Raises:
            RefusedError: A value is out of its range.
        """
        try:
            return Sampling(
                max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                logit_bias=self.logit_bias,
                forced=forced,
                stop_ids=stop_ids,
                stop_strings=self.stop,
                seed=seed,
            )
        except ValueError as error:
            raise RefusedError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said."""

    message: Message
    """As the client is told: without its thinking."""
    thought: str
    """What it thought before; empty where it did not."""
    tokens: Tokens
    """[T] what was drawn, and where something was forced, that too."""
    model_logprobs: tuple[float, ...]
    """[T] of the model itself, whatever the temperature; NaN where the engine does not say."""
    finish: str
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int
    cached_tokens: int = 0

    def piece(self, tokenizer: Any, place: int) -> str:
        """The text of one token."""
        return str(tokenizer.decode([self.tokens.ids[place]], skip_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Delta:
    """Some more of an answer under way, to be shown at once."""

    text: str
    tokens: int
    """How many were drawn so far."""
