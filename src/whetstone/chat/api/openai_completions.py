"""`/v1/completions`: a text, or ids of tokens, to go on from as they stand, and what came behind them.

Nothing is put around a prompt, and signs of the chat template in it are what they say. So a client that renders
conversations itself is answered as it would be anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat.api import fields
from whetstone.chat.api.asked import Answer, Asked, RefusedError, json_number
from whetstone.chat.api.fields import refuse_unknown, shortened
from whetstone.chat.api.openai_chat import error_of, event, usage
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.shapes import request_of, whole
from whetstone.chat.token_bytes import TokenBytes, text_offsets

_MOST_NAMED = 5
_READ = frozenset({
    "prompt", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "frequency_penalty",
    "presence_penalty", "model", "stream", "stream_options", "user",
})  # fmt: skip
_WHY = {
    "echo": "the prompt is known to who sent it, and of its tokens no log-probs were drawn",
    "best_of": "answers that are drawn and not returned could not be recorded",
    "suffix": "what is to stand behind is not read here",
}


def asked_of(body: Mapping[str, Any]) -> Asked:
    """What a request asks for.

    Raises:
        RefusedError: It is none, or asks for what cannot be given.
    """
    given = {name: value for name, value in body.items() if (name, value) not in (("echo", False), ("best_of", 1))}
    refuse_unknown(given, _READ, _WHY)
    fields.refuse_penalties(body)
    named = fields.whole(body, "logprobs", least=0, most=_MOST_NAMED)
    return Asked(
        (),
        (),
        fields.whole(body, "max_tokens") or 16,  # as the API has it
        fields.temperature(body),
        fields.top_p(body),
        fields.stops_of(body.get("stop")),
        fields.seed(body.get("seed")),
        fields.count(body),
        logit_bias=fields.bias(body.get("logit_bias")),
        top_logprobs=named or 0,
        prompt=_prompt(body.get("prompt")),
    )


def _prompt(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(type(token) is int and token >= 0 for token in given):
        return tuple(given)
    raise RefusedError(
        f"prompt: a text or a list of token ids, not empty, and one of them a request; got {shortened(given)}",
        param="prompt",
    )


def completion(
    id: str, model: str, answers: Sequence[Answer], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """The answers as one `text_completion`."""
    choices = [
        _choice(number, answer.message.text, answer.finish, _logprobs(answer, tokenizer, body))
        for number, answer in enumerate(answers)
    ]
    return {**_head(id, model), "choices": choices, "usage": usage(answers)}


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(number: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(answer: Answer, tokenizer: Any, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if body.get("logprobs") is None:
        return None
    vocabulary = TokenBytes(tokenizer)
    pieces = vocabulary.split(answer.ids)
    tops = [_named_tops(vocabulary, each, is_first=place == 0) for place, each in enumerate(answer.tops)]
    return {
        "tokens": [_named(piece) for piece in pieces],
        "token_logprobs": [json_number(logprob) for logprob in answer.logprobs],
        "top_logprobs": tops or None,
        "text_offset": text_offsets(pieces),
    }


def _named(piece: bytes) -> str:
    """Return the text of a token; a part of a character is `bytes:\\xe2\\x82`, as in OpenAI's API."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _named_tops(vocabulary: TokenBytes, tops: Mapping[int, float], *, is_first: bool) -> dict[str, float]:
    """Return the log-probs of tokens by text; a second token of the same text is `token_id:17`."""
    named: dict[str, float] = {}
    for token, logprob in tops.items():
        text = _named(vocabulary.of(token, is_first=is_first))
        named[f"token_id:{token}" if text in named else text] = json_number(logprob)
    return named


class Chunks:
    """A stream of `text_completion` events."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(isinstance(options, Mapping) and options.get("include_usage"))
        self._head, self._body, self._tokenizer = _head(id, model), body, tokenizer
        self._shown: dict[int, str] = {}

    def opened(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Nothing is said before there is text."""
        self._shown = dict.fromkeys(range(count), "")
        return iter(())

    def more(self, number: int, text: str) -> Iterator[str]:
        """Some text of a choice."""
        self._shown[number] += text
        yield self._event(_choice(number, text, None))

    def ended(self, answers: Sequence[Answer]) -> Iterator[str]:
        """What was held back of each choice, why it ended, what it took."""
        for number, answer in enumerate(answers):
            text, shown = answer.message.text, self._shown[number]
            rest = text[len(shown) :] if text.startswith(shown) else ""
            yield self._event(_choice(number, rest, answer.finish, _logprobs(answer, self._tokenizer, self._body)))
        if self._usage:
            yield event({**self._head, "choices": [], "usage": usage(answers)})
        yield "data: [DONE]\n\n"

    def failed(self, error: RefusedError) -> str:
        """What went wrong."""
        return event(error_of(error))

    def _event(self, choice: Mapping[str, Any]) -> str:
        return event({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})


_REQUEST = request_of(_READ, ("model", "prompt"), logprobs=whole(0, _MOST_NAMED))
COMPLETIONS = Wire("cmpl-", asked_of, completion, Chunks, error_of, _REQUEST)
