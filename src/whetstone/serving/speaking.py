"""How is an answer drawn, and kept? Behind the tokens of what was said before, by any engine.

Easy to get wrong: what is drawn must not depend on whether somebody watches, nor on when he hears of it.
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
from whetstone.chat.api.asked import Answer, Asked, RefusedError, told
from whetstone.chat.api.fields import run_by_size
from whetstone.chat.call_grammar import CallGrammar, CallGrammarError, call_grammar
from whetstone.chat.message import Text
from whetstone.errors import PolicyError, PromptTooLong
from whetstone.inference import Engine, GenerateRequest, Generation, Sampling
from whetstone.inference.protocol import Constraint, EngineAbilities
from whetstone.seeding import derive_seed
from whetstone.serving.recording import Episode, Place, turn_of
from whetstone.serving.schemas import GrammarConstraint, Schemas
from whetstone.serving.showing import Show, Shown
from whetstone.trajectory import Author, Tokens

_MAX_GRAMMARS = 64
"""Sets of tools whose grammars are kept."""
Begun = Callable[[int], None]
"""Told how many tokens an answer is drawn behind."""


class Speaker:
    """A model that answers clients.

    Args:
        context_length: Tokens it has room for.
        seed: Of draws for which a client names none.
    """

    def __init__(self, engine: Engine, chat: Chat, *, context_length: int, seed: int = 0) -> None:
        self.engine, self.chat, self.context_length = engine, chat, context_length
        self._seed, self._asked = seed, 0
        self._schemas = Schemas(chat.tokenizer, chat.stop_ids)
        self._call_grammars: dict[str, CallGrammar] = {}

    async def answers(
        self, asked: Asked, episode: Episode, show: Sequence[Show | None] = (), begun: Begun | None = None
    ) -> list[Answer]:
        """So many answers as are asked for, each recorded.

        Args:
            show: Told of each while it is drawn.
            begun: Told how many tokens they are drawn behind.

        Raises:
            RefusedError: It cannot be answered; the message says why.
        """
        place = await run_by_size(asked.characters, lambda: self._place(asked, episode))
        if begun is not None:
            begun(len(place.context.ids))
        seed = asked.seed if asked.seed is not None else self._own_seed(episode)
        watching = list(show) or [None] * asked.count
        seeds = [seed if number == 0 else derive_seed(seed, "choice", number) for number in range(asked.count)]
        drawing = [self._answer(asked, episode, place, own, each) for own, each in zip(seeds, watching, strict=True)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in drawing]
        return [self._kept(asked, episode, place, *task.result()) for task in tasks]

    @cached_property
    def _calls_begin(self) -> str | None:
        """Text with which every call starts, up to the name of its tool; None if that is the name itself."""
        tool = ToolSpec("some_tool", "", {"type": "object", "properties": {}})
        try:
            start = _beginning(self.chat, [tool]).partition(tool.name)[0].strip()
            return start or None
        except RefusedError:
            return ""

    def _own_seed(self, episode: Episode) -> int:
        """Of a request that names none: the one of this turn in the native loop, where the episode has a seed."""
        if episode.seed is not None:
            return derive_seed(episode.seed, "turn", len(episode.said))
        self._asked += 1
        return derive_seed(self._seed, "request", self._asked)

    def count(self, asked: Asked) -> int:
        """How many tokens these messages take, said anew.

        Raises:
            RefusedError: They cannot be shown to the model.
        """
        try:
            return len(self.chat.open(asked.messages, asked.tools).ids)
        except PolicyError as error:
            raise RefusedError(str(error), param="messages") from None

    def _place(self, asked: Asked, episode: Episode) -> Place:
        _check_request(asked, self.engine.abilities, len(self.chat.tokenizer))
        try:
            if asked.prompt is None:
                place = episode.place(self.chat, asked.messages, asked.tools)
            else:
                place = episode.prompted(self.chat, asked.prompt)
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
            raise RefusedError("prompt: there is not a token in it", param="prompt")
        if asked.schema is not None and _in_thought(self.chat, place):
            raise RefusedError(
                "response_format: this model begins with a thought, which is no JSON; its template may have a "
                "variable that leaves it out (chat.variables)",
                param="response_format",
            )
        return place

    async def _answer(
        self, asked: Asked, episode: Episode, place: Place, seed: int, show: Show | None
    ) -> tuple[Generation, list[bool], str]:
        """(what was drawn, whether each token of it was forced, what was shown of it)"""
        room = self.context_length - len(place.context.ids)
        most = room if asked.max_tokens is None else min(room, asked.max_tokens)
        constraint = await self._constraint(asked)
        sampling = self._sampling(asked, most, seed, constraint)
        named = f"{episode.id}/{id(place)}/{seed}"
        hidden = asked.must_call is not None or _in_thought(self.chat, place)
        shown = Shown(self.chat, asked, show, hidden=hidden, calls=self._calls_begin)
        on_tokens = shown.on_tokens if show is not None or asked.one_call else None
        request = GenerateRequest(place.context.tokens, sampling, named, episode.spans(place), on_tokens)
        try:
            drawn = await self.engine.generate(request)
        except PromptTooLong as error:
            raise RefusedError(str(error), param="messages", code="context_length_exceeded") from None
        finally:
            self.engine.forget(named)
        if shown.over(drawn.tokens):
            drawn = replace(drawn[: shown.ends], finish="stop")
        forced = [] if constraint is None else constraint.forced
        return drawn, [*forced, *[False] * len(drawn.tokens)][: len(drawn.tokens)], shown.shown

    def _kept(
        self, asked: Asked, episode: Episode, place: Place, drawn: Generation, forced: Sequence[bool], shown: str
    ) -> Answer:
        action = Tokens.joined(_tokens(drawn, forced))
        known = drawn.model_logprobs or (math.nan,) * len(drawn.tokens)
        logprobs = tuple(b if math.isnan(a) else a for a, b in zip(known, action.logprobs, strict=True))
        ended = "stop" if drawn.finish == "stop" else "length"
        if asked.prompt is not None:
            raw, thought = assistant(self._text(drawn.tokens)), ""
            said, stop = _stopped(raw, asked.stop)
            text = str(self.chat.tokenizer.decode((*place.context.ids, *action.ids), skip_special_tokens=False))
            episode.add(place, action, raw, said, text)
        else:
            most = 0 if not asked.tools else 1 if asked.one_call else None
            turn = turn_of(place.before, place.heard)
            raw = self.chat.read(drawn.tokens, asked.tools, turn=turn, max_calls=most)
            thought, said = told(raw)
            said, stop = _stopped(said, asked.stop)
            if not said.text.startswith(shown):  # what looked like words turned out to be a call: they stay said
                said = replace(said, content=(Text(shown),))
            episode.add(place, action, raw, said)
        finish = "tool_calls" if said.tool_calls and ended == "stop" else ended
        return Answer(said, thought, action.ids, logprobs, finish, len(place.context.ids), stop, drawn.tops)

    def _text(self, tokens: Sequence[int]) -> str:
        """Of an answer, without the token that ended it."""
        ended = bool(tokens) and tokens[-1] in self.chat.stop_ids
        return str(self.chat.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False))

    def _sampling(self, asked: Asked, count: int, seed: int, constraint: Constraint | None) -> Sampling:
        try:
            return Sampling(
                count,
                temperature=asked.temperature,
                top_k=asked.top_k,
                top_p=asked.top_p,
                logit_bias=asked.logit_bias,
                stop_ids=self.chat.stop_ids,
                stop_strings=asked.stop,
                seed=seed,
                top_logprobs=asked.top_logprobs,
                constraint=constraint,
            )
        except ValueError as error:
            raise RefusedError(str(error)) from None

    async def _constraint(self, asked: Asked) -> GrammarConstraint | None:
        """Return the constraint of the answer: a schema, or a call of a tool."""
        if asked.schema is not None:
            return await asyncio.to_thread(self._schemas.constraint, asked.schema)
        if asked.must_call is None:
            return None
        return await asyncio.to_thread(self._schemas.call_constraint, self._call_grammar(asked))

    def _call_grammar(self, asked: Asked) -> CallGrammar:
        callable_tools = [tool for tool in asked.tools if asked.must_call in ("", tool.name)]
        is_single = asked.one_call or asked.must_call != ""
        key = json.dumps([[tool.to_openai() for tool in asked.tools], asked.must_call, is_single])
        if key not in self._call_grammars:
            try:
                grammar = call_grammar(self.chat, callable_tools, offered=asked.tools, is_single=is_single)
            except CallGrammarError as error:
                raise RefusedError(
                    f"tool_choice: {error}; use tool_choice auto, or another `chat.format`", param="tool_choice"
                ) from None
            if len(self._call_grammars) >= _MAX_GRAMMARS:
                self._call_grammars.clear()
            self._call_grammars[key] = grammar
        return self._call_grammars[key]


def _check_request(asked: Asked, abilities: EngineAbilities, known: int) -> None:
    """Refuse a request that the engine or the tokenizer cannot fulfill.

    Args:
        known: Number of tokens of the vocabulary.

    Raises:
        RefusedError: The message names the field and the remedy.
    """
    prompt = asked.prompt if isinstance(asked.prompt, tuple) else ()
    for name, ids in (("logit_bias", tuple(asked.logit_bias)), ("prompt", prompt)):
        if wrong := [token for token in ids if not 0 <= token < known]:
            raise RefusedError(f"{name}: no token {str(wrong[0])[:40]}; there are {known}, from 0", param=name)
    if sum(math.isinf(value) for value in asked.logit_bias.values()) >= known:
        raise RefusedError("logit_bias: it forbids every token", param="logit_bias")
    held = _held_by(asked)
    if asked.logit_bias and not abilities.logit_bias:
        raise RefusedError("logit_bias: this engine draws without", param="logit_bias")
    if asked.top_logprobs and not abilities.top_logprobs:
        raise RefusedError(
            "top_logprobs: of drawn tokens alone this engine tells log-probs (logprobs: true)", param="top_logprobs"
        )
    if not held:
        return
    if not abilities.constraints:
        remedy = "ask for it in a message" if asked.schema is not None else "use tool_choice auto"
        raise RefusedError(
            f"{held}: this engine cannot constrain sampling; {remedy}, or serve with `engine: local`",
            param=held,
            code="unsupported_parameter",
        )
    if any(math.isinf(value) for value in asked.logit_bias.values()):
        raise RefusedError(
            f"logit_bias: {held} can require a token that -100 forbids; use values above -100", param="logit_bias"
        )
    if asked.must_call is not None and asked.stop:
        raise RefusedError(
            "stop: it can cut the call that tool_choice requires; leave it out, or use tool_choice auto",
            param="stop",
        )
    if asked.schema is not None and asked.tools:
        raise RefusedError(
            "response_format: not beside tools, whose calls are in no schema; tool_choice: none",
            param="response_format",
        )


def _held_by(asked: Asked) -> str:
    """Return the field that restricts sampling to a grammar; empty: none does."""
    if asked.schema is not None:
        return "response_format"
    return "tool_choice" if asked.must_call is not None else ""


def _beginning(chat: Chat, tools: Sequence[ToolSpec]) -> str:
    """What every call of these tools begins with."""
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


def _tokens(drawn: Generation, forced: Sequence[bool]) -> Iterator[Tokens]:
    """What was drawn in runs of forced tokens, which have no log-prob, and sampled ones, which do."""
    start = 0
    for is_forced, run in groupby(forced):
        end = start + len(list(run))
        if is_forced:
            yield Tokens.written(drawn.tokens[start:end], Author.INSERTED)
        else:
            yield drawn[start:end].to_tokens()
        start = end


def _in_thought(chat: Chat, place: Place) -> bool:
    """Whether the model is asked in a thought that its template has begun."""
    opening, shown = chat.dialect.thought_signs[0], place.context.shown
    return bool(shown and opening) and shown[-1].rstrip().endswith(opening)


def _stopped(message: Message, stops: Sequence[str]) -> tuple[Message, str]:
    """(the message without the text that ended it, and what a token said behind it; that text)"""
    text = message.text
    ends = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return message, ""
    at, stop = min(ends)
    said = text[:at]
    return replace(message, content=(Text(said),) if said else ()), stop
