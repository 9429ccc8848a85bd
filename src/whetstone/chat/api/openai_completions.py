"""`/v1/completions`: continuation of a text or of token ids, without a template.

The prompt is not changed, and special tokens in its text are tokenized as such. Clients that render conversations
themselves get the same result as from any server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.chat.api import request_fields
from whetstone.chat.api.openai_chat import count_usage, format_event, write_error
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.request_fields import refuse_unknown, truncate_value
from whetstone.chat.api.request_schemas import integer_schema, request_schema
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError, json_number
from whetstone.chat.token_bytes import TokenBytes, text_offsets

_MOST_NAMED = 5
_READ = frozenset({
    "prompt", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs", "frequency_penalty",
    "presence_penalty", "model", "stream", "stream_options", "user",
})  # fmt: skip
_WHY = {
    "echo": "the client has the prompt, and no log-probs of its tokens are computed",
    "best_of": "answers that are sampled and not returned cannot be recorded",
    "suffix": "infilling is not supported",
}


def parse_completion_request(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse the body of a `/v1/completions` request.

    Raises:
        RefusedError: If a field is invalid, unknown or not supported.
    """
    fields_with_effect = {
        name: value for name, value in body.items() if (name, value) not in (("echo", False), ("best_of", 1))
    }
    refuse_unknown(fields_with_effect, _READ, _WHY)
    request_fields.refuse_penalties(body)
    named = request_fields.parse_int(body, "logprobs", least=0, most=_MOST_NAMED)
    return CompletionRequest(
        (),
        (),
        request_fields.parse_int(body, "max_tokens") or 16,  # default of the API
        request_fields.parse_temperature(body),
        request_fields.parse_top_p(body),
        request_fields.parse_stops(body.get("stop")),
        request_fields.parse_sampling_seed(body.get("seed")),
        request_fields.parse_answer_count(body),
        logit_bias=request_fields.parse_logit_bias(body.get("logit_bias")),
        top_logprobs=named or 0,
        prompt=_prompt(body.get("prompt")),
    )


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise RefusedError(
        f"prompt: expected one nonempty text or list of token ids, got {truncate_value(value)}",
        param="prompt",
    )


def format_text_completion(
    id: str, model: str, answers: Sequence[CompletionResponse], body: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Return the response body, an object of type `text_completion` with one choice per answer."""
    choices = [
        _choice(number, answer.message.text, answer.finish, _logprobs(answer, tokenizer, body))
        for number, answer in enumerate(answers)
    ]
    return {**_head(id, model), "choices": choices, "usage": count_usage(answers)}


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(number: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(answer: CompletionResponse, tokenizer: Any, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if body.get("logprobs") is None:
        return None
    vocabulary = TokenBytes(tokenizer)
    pieces = vocabulary.split_tokens(answer.ids)
    tops = [_named_tops(vocabulary, each, is_first=place == 0) for place, each in enumerate(answer.tops)]
    return {
        "tokens": [_named(piece) for piece in pieces],
        "token_logprobs": [json_number(logprob) for logprob in answer.logprobs],
        "top_logprobs": tops or None,
        "text_offset": text_offsets(pieces),
    }


def _named(piece: bytes) -> str:
    r"""Return the text of a token.

    A token with a part of a character becomes `bytes:\xe2\x82`, as in OpenAI's API.
    """
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _named_tops(vocabulary: TokenBytes, tops: Mapping[int, float], *, is_first: bool) -> dict[str, float]:
    """Return log-probs by the text of their token.

    If two tokens have the same text, the second is `token_id:17`.
    """
    named: dict[str, float] = {}
    for token, logprob in tops.items():
        text = _named(vocabulary.decode_token(token, is_first=is_first))
        named[f"token_id:{token}" if text in named else text] = json_number(logprob)
    return named


class TextStream:
    """Writer of `text_completion` events; see `Stream`."""

    def __init__(self, id: str, model: str, body: Mapping[str, Any], tokenizer: Any) -> None:
        options = body.get("stream_options") or {}
        self._usage = bool(isinstance(options, Mapping) and options.get("include_usage"))
        self._head, self._body, self._tokenizer = _head(id, model), body, tokenizer
        self._shown: dict[int, str] = {}

    def write_start(self, count: int, prompt_tokens: int) -> Iterator[str]:
        """Yield nothing: this API has no event before the first text."""
        self._shown = dict.fromkeys(range(count), "")
        return iter(())

    def write_text(self, number: int, text: str) -> Iterator[str]:
        """Yield an event with new text of a choice."""
        self._shown[number] += text
        yield self._event(_choice(number, text, None))

    def write_end(self, answers: Sequence[CompletionResponse]) -> Iterator[str]:
        """Yield the remaining text and finish reason of each choice, the usage if requested, and `[DONE]`."""
        for number, answer in enumerate(answers):
            text, streamed = answer.message.text, self._shown[number]
            rest = text[len(streamed) :] if text.startswith(streamed) else ""
            yield self._event(_choice(number, rest, answer.finish, _logprobs(answer, self._tokenizer, self._body)))
        if self._usage:
            yield format_event({**self._head, "choices": [], "usage": count_usage(answers)})
        yield "data: [DONE]\n\n"

    def write_error(self, error: RefusedError) -> str:
        """Return an event with the error in OpenAI's format."""
        return format_event(write_error(error))

    def _event(self, choice: Mapping[str, Any]) -> str:
        return format_event({**self._head, "choices": [choice], **({"usage": None} if self._usage else {})})


_REQUEST = request_schema(_READ, ("model", "prompt"), logprobs=integer_schema(0, _MOST_NAMED))
COMPLETIONS = Wire("cmpl-", parse_completion_request, format_text_completion, TextStream, write_error, _REQUEST)
