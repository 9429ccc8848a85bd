"""Completion service: samples answers after the recorded tokens of a conversation, with any engine, and records them.

Note:
    Sampling must not depend on whether the answer is streamed, nor on the timing of the client.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby

from whetstone.chat import Chat, Message, ToolCall, ToolSpec, assistant
from whetstone.chat.api.request_fields import run_by_size
from whetstone.chat.api.requests import CompletionRequest, CompletionResponse, RefusedError, split_thinking
from whetstone.chat.call_grammar import CallGrammar, CallGrammarError, call_grammar
from whetstone.chat.message import Text
from whetstone.errors import PolicyError, PromptTooLong
from whetstone.inference import Engine, GenerateRequest, Generation, Sampling
from whetstone.inference.protocol import Constraint, EngineCapabilities
from whetstone.network.http_layer import ACCESS_LOG
from whetstone.seeding import derive_seed
from whetstone.serving.constrained_decoding import GrammarConstraint, Schemas
from whetstone.serving.conversation_matching import ResumePoint, ServerEpisode, count_previous_answers
from whetstone.serving.detokenizer import Show, StreamedText
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Author, Tokens

_MAX_REASON_CHARACTERS = 200
_MAX_GRAMMARS = 64
"""Maximum number of cached grammars, one per set of tools."""
OnPromptTokens = Callable[[int], None]
"""Callback that receives the number of prompt tokens."""


class CompletionService:
    """Samples and records the answers to requests of clients, with any engine.

    Args:
        context_length: Maximum number of tokens in the context.
        seed: Seed of requests that name none.
    """

    def __init__(self, engine: Engine, chat: Chat, *, context_length: int, seed: int = 0) -> None:
        self.engine, self.chat, self.context_length = engine, chat, context_length
        self._seed, self._num_requests = seed, 0
        self._schemas = Schemas(chat.tokenizer, chat.stop_ids)
        self._call_grammars: dict[str, CallGrammar] = {}

    async def sample_answers(
        self,
        request: CompletionRequest,
        episode: ServerEpisode,
        show: Sequence[Show | None] = (),
        on_prompt_tokens: OnPromptTokens | None = None,
    ) -> list[CompletionResponse]:
        """Sample the requested number of answers and record them in the episode.

        Args:
            request: The parsed request.
            episode: Episode of the request.
            show: Callback per answer for streaming.
            on_prompt_tokens: Receives the number of prompt tokens.

        Raises:
            RefusedError: The request is invalid; the message gives the reason.
        """
        place = await run_by_size(request.num_characters, lambda: self._find_resume_point(request, episode))
        if on_prompt_tokens is not None:
            on_prompt_tokens(len(place.context.ids))
        seed = request.seed if request.seed is not None else self._own_seed(episode)
        watching = list(show) or [None] * request.count
        seeds = [seed if number == 0 else derive_seed(seed, "choice", number) for number in range(request.count)]
        drawing = [self._answer(request, episode, place, own, each) for own, each in zip(seeds, watching, strict=True)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in drawing]
        return [self._record_answer(request, episode, place, *task.result()) for task in tasks]

    @cached_property
    def _call_prefix(self) -> str | None:
        """Return the text with which every tool call of the format starts, up to the name of the tool.

        The result is None if a call starts with the name itself, so that it has no marker.
        """
        tool = ToolSpec("some_tool", "", {"type": "object", "properties": {}})
        try:
            start = _common_call_prefix(self.chat, [tool]).partition(tool.name)[0].strip()
            return start or None
        except RefusedError:
            return ""

    def _own_seed(self, episode: ServerEpisode) -> int:
        """Return the sampling seed of a request without `seed`.

        If the episode has a seed, the result is the seed that the native rollout uses for this turn.
        """
        if episode.seed is not None:
            return derive_seed(episode.seed, "turn", len(episode.answers))
        self._num_requests += 1
        return derive_seed(self._seed, "request", self._num_requests)

    def count_tokens(self, request: CompletionRequest) -> int:
        """Count the prompt tokens of a request as a new conversation, for `count_tokens` of the Anthropic API.

        Raises:
            RefusedError: The chat template rejects the messages.
        """
        try:
            return len(self.chat.open(request.messages, request.tools).ids)
        except PolicyError as error:
            raise RefusedError(str(error), param="messages") from None

    def _find_resume_point(self, request: CompletionRequest, episode: ServerEpisode) -> ResumePoint:
        _check_request(request, self.engine.capabilities, len(self.chat.tokenizer))
        try:
            if request.prompt is None:
                place = episode.find_resume_point(self.chat, request.messages, request.tools)
            else:
                place = episode.find_prompt_resume_point(self.chat, request.prompt)
        except PolicyError as error:
            raise RefusedError(str(error), param="messages") from None
        taken = len(place.context.ids)
        if taken >= self.context_length:
            raise RefusedError(
                f"This model's maximum context length is {self.context_length} tokens; the messages take {taken}.",
                param="messages",
                code="context_length_exceeded",
            )
        if not taken:
            raise RefusedError("prompt: must have at least one token", param="prompt")
        if request.schema is not None and _is_in_thought(self.chat, place):
            raise RefusedError(
                "response_format: this model starts with thinking, which is not JSON; its template may have a "
                "variable that disables it (chat.variables)",
                param="response_format",
            )
        return place

    async def _answer(
        self, request: CompletionRequest, episode: ServerEpisode, place: ResumePoint, seed: int, show: Show | None
    ) -> tuple[Generation, list[bool], str]:
        """Sample one answer; return (sampled tokens, whether each token was forced, streamed text)."""
        free = self.context_length - len(place.context.ids)
        max_tokens = free if request.max_tokens is None else min(free, request.max_tokens)
        constraint = await self._constraint(request)
        sampling = self._sampling(request, max_tokens, seed, constraint)
        name = f"{episode.id}/{id(place)}/{seed}"
        hidden = request.must_call is not None or _is_in_thought(self.chat, place)
        stream = StreamedText(self.chat, request, show, hidden=hidden, calls=self._call_prefix)
        on_tokens = stream.on_tokens if show is not None or request.one_call else None
        generation_request = GenerateRequest(
            place.context.tokens, sampling, name, episode.sampled_spans(place), on_tokens
        )
        try:
            generation = await self.engine.generate(generation_request)
        except PromptTooLong as error:
            raise RefusedError(str(error), param="messages", code="context_length_exceeded") from None
        finally:
            self.engine.forget(name)
        if stream.is_complete(generation.tokens):
            generation = replace(generation[: stream.end], finish="stop")
        forced = [] if constraint is None else constraint.forced
        return generation, [*forced, *[False] * len(generation.tokens)][: len(generation.tokens)], stream.sent_text

    def _record_answer(
        self,
        request: CompletionRequest,
        episode: ServerEpisode,
        place: ResumePoint,
        generation: Generation,
        forced: Sequence[bool],
        sent_text: str,
    ) -> CompletionResponse:
        action = Tokens.concatenate(_split_forced(generation, forced))
        known = generation.model_logprobs or (math.nan,) * len(generation.tokens)
        logprobs = tuple(b if math.isnan(a) else a for a, b in zip(known, action.logprobs, strict=True))
        end_reason = "stop" if generation.finish == "stop" else "length"
        if request.prompt is not None:
            raw, thought = assistant(self._text(generation.tokens)), ""
            message, stop = _cut_at_stop(raw, request.stop)
            text = str(self.chat.tokenizer.decode((*place.context.ids, *action.ids), skip_special_tokens=False))
            episode.add(place, action, raw, message, text)
        else:
            most = 0 if not request.tools else 1 if request.one_call else None
            turn = count_previous_answers(place.before, place.new_messages)
            raw = self.chat.read(generation.tokens, request.tools, turn=turn, max_calls=most)
            thought, message = split_thinking(raw)
            if raw.malformed and not raw.tool_calls and end_reason == "stop":  # a truncated call is not text
                reason = sanitize_text(raw.malformed[0])[:_MAX_REASON_CHARACTERS]
                ACCESS_LOG.warning("malformed tool call in episode %s, sent as text: %s", episode.id, reason)
                thought, message = split_thinking(assistant(self._text(generation.tokens)))
            message, stop = _cut_at_stop(message, request.stop)
            if not message.text.startswith(
                sent_text
            ):  # text that was sent turned out to be a call; it remains in the message
                message = replace(message, content=(Text(sent_text),))
            episode.add(place, action, raw, message)
        finish = "tool_calls" if message.tool_calls and end_reason == "stop" else end_reason
        return CompletionResponse(
            message, thought, action.ids, logprobs, finish, len(place.context.ids), stop, generation.tops
        )

    def _text(self, tokens: Sequence[int]) -> str:
        """Decode the tokens of an answer without the stop token at their end."""
        ended = bool(tokens) and tokens[-1] in self.chat.stop_ids
        return str(self.chat.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False))

    def _sampling(self, request: CompletionRequest, count: int, seed: int, constraint: Constraint | None) -> Sampling:
        try:
            return Sampling(
                count,
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                logit_bias=request.logit_bias,
                stop_ids=self.chat.stop_ids,
                stop_strings=request.stop,
                seed=seed,
                top_logprobs=request.top_logprobs,
                constraint=constraint,
            )
        except ValueError as error:
            raise RefusedError(str(error)) from None

    async def _constraint(self, request: CompletionRequest) -> GrammarConstraint | None:
        """Return the constraint that the request asks for: a JSON schema, or a required tool call; None without one."""
        if request.schema is not None:
            return await asyncio.to_thread(self._schemas.build_constraint, request.schema)
        if request.must_call is None:
            return None
        return await asyncio.to_thread(self._schemas.call_constraint, self._call_grammar(request))

    def _call_grammar(self, request: CompletionRequest) -> CallGrammar:
        callable_tools = [tool for tool in request.tools if request.must_call in ("", tool.name)]
        is_single = request.one_call or request.must_call != ""
        key = json.dumps([[tool.to_openai() for tool in request.tools], request.must_call, is_single])
        if key not in self._call_grammars:
            try:
                grammar = call_grammar(self.chat, callable_tools, offered=request.tools, is_single=is_single)
            except CallGrammarError as error:
                raise RefusedError(
                    f"tool_choice: {error}; use tool_choice auto, or another `chat.format`", param="tool_choice"
                ) from None
            if len(self._call_grammars) >= _MAX_GRAMMARS:
                self._call_grammars.clear()
            self._call_grammars[key] = grammar
        return self._call_grammars[key]


def _check_request(request: CompletionRequest, capabilities: EngineCapabilities, known: int) -> None:
    """Refuse a request that the engine or the tokenizer cannot fulfill.

    Args:
        known: Number of tokens of the vocabulary.

    Raises:
        RefusedError: The message names the field and the remedy.
    """
    prompt = request.prompt if isinstance(request.prompt, tuple) else ()
    for name, ids in (("logit_bias", tuple(request.logit_bias)), ("prompt", prompt)):
        if wrong := [token for token in ids if not 0 <= token < known]:
            raise RefusedError(f"{name}: no token {str(wrong[0])[:40]}; there are {known}, from 0", param=name)
    if sum(math.isinf(value) for value in request.logit_bias.values()) >= known:
        raise RefusedError("logit_bias: it forbids every token", param="logit_bias")
    restriction = _restricting_field(request)
    if request.logit_bias and not capabilities.logit_bias:
        raise RefusedError("logit_bias: this engine does not support it", param="logit_bias")
    if request.top_logprobs and not capabilities.top_logprobs:
        raise RefusedError(
            "top_logprobs: this engine returns log-probs of sampled tokens only; use logprobs: true",
            param="top_logprobs",
        )
    if not restriction:
        return
    if not capabilities.constraints:
        remedy = "ask for it in a message" if request.schema is not None else "use tool_choice auto"
        raise RefusedError(
            f"{restriction}: this engine cannot constrain sampling; {remedy}, or serve with `engine: local`",
            param=restriction,
            code="unsupported_parameter",
        )
    if any(math.isinf(value) for value in request.logit_bias.values()):
        raise RefusedError(
            f"logit_bias: {restriction} can require a token that -100 forbids; use values above -100",
            param="logit_bias",
        )
    if request.must_call is not None and request.stop:
        raise RefusedError(
            "stop: it can cut the call that tool_choice requires; leave it out, or use tool_choice auto",
            param="stop",
        )
    if request.schema is not None and request.tools:
        raise RefusedError(
            "response_format: cannot be combined with tools; leave them out, or use tool_choice: none",
            param="response_format",
        )


def _restricting_field(request: CompletionRequest) -> str:
    """Return the name of the request field that restricts sampling to a grammar; empty if there is none."""
    if request.schema is not None:
        return "response_format"
    return "tool_choice" if request.must_call is not None else ""


def _common_call_prefix(chat: Chat, tools: Sequence[ToolSpec]) -> str:
    """Return the longest text with which the calls of all tools start in the format of the model."""
    texts = []
    for tool in tools:
        for value in ('{"a": 1}', '{"b": [2]}'):
            call = Message("assistant", (), (ToolCall(tool.name, value),))
            try:
                texts.append(chat.tokenizer.decode(chat.write(call, tools), skip_special_tokens=False))
            except ValueError as error:
                raise RefusedError(
                    f"this model's tool format cannot force a call: {error}", param="tool_choice"
                ) from None
    shortest = min(texts, key=len)
    for place, sign in enumerate(shortest):
        if any(text[place] != sign for text in texts):
            return str(shortest[:place])
    return str(shortest)


def _split_forced(generation: Generation, forced: Sequence[bool]) -> Iterator[Tokens]:
    """Yield runs of forced tokens, which have no log-prob, and of sampled tokens, which have one."""
    start = 0
    for is_forced, run in groupby(forced):
        end = start + len(list(run))
        if is_forced:
            yield Tokens.from_ids(generation.tokens[start:end], Author.INSERTED)
        else:
            yield generation[start:end].to_tokens()
        start = end


def _is_in_thought(chat: Chat, place: ResumePoint) -> bool:
    """Return whether the context ends inside thinking that the chat template has opened."""
    opening, parts = chat.dialect.thought_signs[0], place.context.rendered
    return bool(parts and opening) and parts[-1].rstrip().endswith(opening)


def _cut_at_stop(message: Message, stops: Sequence[str]) -> tuple[Message, str]:
    """Cut a message before the first stop string; return (message, stop string or an empty string)."""
    text = message.text
    ends = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return message, ""
    at, stop = min(ends)
    kept_text = text[:at]
    return replace(message, content=(Text(kept_text),) if kept_text else ()), stop
