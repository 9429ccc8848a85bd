"""Incremental tokenization of a conversation: sampled tokens are kept, never re-tokenized.

    ids of turn t+1  =  ids of turn t  +  sampled ids  +  ids of the new messages as the template renders them

The sampled ids are the record. The text that the template adds after them is found by rendering the conversation with
placeholders for the model's turns, so any template works unchanged, whatever its call syntax. The placeholders also
detect changes of the history. If one is missing (earlier thoughts are dropped), or the text between them differs from
the context (the system message has moved), the template has rewritten the history. Then everything is rendered again in
a new segment.

Note:
    encode(decode(ids)) often differs from ids. A tool result that contains `<|im_end|>` must not end the turn, so such
    look-alikes of special tokens in untrusted text are broken up first.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from whetstone.chat.message import Message, Text, ToolCall, ToolSpec, system, with_text
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.rendering import Variable, template_renderer, to_text, tokenizer_name, uses_clock, write_as_text
from whetstone.chat.template_probe import (
    HistoryRewritten,
    Prober,
    Spoken,
    TurnBlock,
    TurnParts,
    in_parts,
    probe_template,
)
from whetstone.chat.thoughts import read_after_thought
from whetstone.chat.turn_ends import Vocabulary, end_pattern, find_turn_ends
from whetstone.errors import PolicyError
from whetstone.tokens import TokenSequence

_HALF = re.compile("[\ud800-\udfff]")
_PROBE = "\ue000probe\ue000"  # private-use characters: no template and no text contains them
_ANSWERS = re.compile(r"call_\d+_(\d+)")
_MAX_CACHED_PROMPTS, _MAX_CACHED_TURNS, _MAX_CACHED_TEXTS = 64, 1024, 1024
_MAX_CACHED_CHARACTERS = 1000
"""Maximum length of a text whose token ids or parsed turn are cached."""
T = TypeVar("T")


_ALL_RENDERED_TURNS = 16
"""Number of turns of a segment up to which every continuation is found by rendering the whole conversation."""


@dataclass(frozen=True, slots=True)
class Context:
    """Context of the model at one point of an episode: its tokens, and the conversation that they render.

    `Chat.open` and `Chat.extend` create contexts.
    """

    tokens: TokenSequence
    """[T] tokens of the full context, from which the model continues."""
    new: TokenSequence
    """[T'] tokens after the last sampled one; equal to `tokens` if `opens_segment`."""
    opens_segment: bool
    """Whether the context starts a new segment: it is the first of the episode, or the template rewrote the history."""
    spoken: Spoken
    """Conversation of the context as messages and turns of the model."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the context offers."""
    rendered: tuple[str, ...] = ()
    """Texts of the segment that the template wrote: up to the model's first turn, then between its turns."""
    opened: int = 0
    """Number of entries of `spoken` that are in the first text of `rendered`."""
    examples: tuple[TurnBlock, ...] = ()
    """First and last block of each kind after them, in order."""

    @property
    def ids(self) -> tuple[int, ...]:
        """[T] token ids of the full context."""
        return self.tokens.ids


class ResultCache(Generic[T]):
    """Cache of recent results that depend on a key and on the available tools, such as rendered prompts.

    Episodes of a group have the same prompt, mostly start consecutively, and often sample the same turns. Rendering and
    tokenizing a prompt takes about a millisecond on the event loop, which all episodes share.

    Args:
        size: Maximum number of cached results.
        remembers: Whether to cache; False if the same input can give another result. A template that renders the
            current time gives other text tomorrow, so its prompts must not be cached.
    """

    def __init__(self, size: int, *, remembers: bool = True) -> None:
        self._size, self._remembers = size, remembers
        self._known: dict[Hashable, tuple[tuple[ToolSpec, ...], T]] = {}

    def get_or_create(self, key: Hashable, tools: Sequence[ToolSpec], create: Callable[[], T]) -> T:
        """Return the cached result for a key and these tools.

        Call `create` and cache its result if there is none.

        If the cache is full, it is emptied first.
        """
        if not self._remembers:
            return create()
        offered = tuple(tools)
        cached = self._known.get(key)
        if cached is not None and cached[0] == offered:
            return cached[1]
        created = create()
        if len(self._known) >= self._size:
            self._known.clear()
        self._known[key] = offered, created
        return created


class Chat:
    """Conversion between messages and tokens, with the chat template of a tokenizer and a tool-call format.

    A policy has one `Chat`, which all its episodes share. The constructor probes the template.

    Args:
        tokenizer: Hugging Face tokenizer with a chat template.
        format: Tool-call format of the model.
        variables: Additional template variables by name, such as `enable_thinking`.

    Raises:
        PolicyError: If the tokenizer has no template, the template never reads one of the variables, or the template
            cannot be used: it fails, exceeds the limits of time or memory, drops user messages, has no generation
            prompt, or never closes the model's turn.
    """

    def __init__(self, tokenizer: Any, format: ToolCallFormat, variables: Mapping[str, Variable] | None = None) -> None:
        self.tokenizer, self.format, self.variables = tokenizer, format, dict(variables or {})
        self.rewritten = ""
        """Reason of the first new segment in the middle of an episode.

        Empty if the template never rewrote the history.
        """
        self._named = tokenizer_name(tokenizer)
        self._show = template_renderer(tokenizer, self.variables)
        self._prompts = ResultCache[Context](_MAX_CACHED_PROMPTS, remembers=not uses_clock(tokenizer))
        self._turns = ResultCache[tuple[str, str, Message]](_MAX_CACHED_TURNS)
        self._continuations = ResultCache[tuple[Context, Context]](
            _MAX_CACHED_TURNS, remembers=not uses_clock(tokenizer)
        )
        """Contexts by the context before them, which is kept so that its `id` stays unique, and the turn."""
        self._encode_cached = functools.lru_cache(_MAX_CACHED_TEXTS)(self._encode)
        added = tokenizer.added_tokens_decoder
        self._token_text = {i: str(token.content) for i, token in added.items()}
        self.look_alikes = tuple(sorted({*self._token_text.values(), *format.markers}, key=len, reverse=True))
        """Texts of special tokens and markers, longest first, that are broken up in untrusted messages."""
        # added tokens can also be ordinary words: those are text
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._look_alike = re.compile("|".join(map(re.escape, self.look_alikes)))
        self._check()
        self.dialect = probe_template(Prober(self._show), format, set(self._token_text.values()))
        """Properties of the chat template, detected by rendering probe conversations."""
        self.knows_system = self._accepts_system()
        """Whether the template renders system messages."""
        vocabulary = Vocabulary(self.encode, self._token_text, self._special_ids, tokenizer.eos_token_id)
        ends = find_turn_ends(self._named, self.dialect, self._render, Prober(self._show), vocabulary)
        self._ends = ends
        self.stop_ids = ends.stop_ids
        """Ids of the tokens that end a turn of the model when sampled."""
        self._stops = tuple(dict.fromkeys(self._text_of(i) for i in sorted(self.stop_ids)))
        self._text_end = end_pattern(ends.text_end)

    @property
    def frame_signs(self) -> tuple[str, ...]:
        """Tags that the template writes around the text and the thought of a turn, and that are part of neither."""
        signs = (self.dialect.said_sign, self._ends.text_end, *self.dialect.thought_signs)
        return tuple(dict.fromkeys(sign.strip() for sign in signs if sign.strip()))

    def __reduce__(self) -> tuple[type[Chat], tuple[Any, ToolCallFormat, dict[str, Variable]]]:
        """Pickle the constructor's arguments; the receiving process compiles the template itself."""
        return Chat, (self.tokenizer, self.format, self.variables)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Context:
        """Return the initial context of an episode: tools, initial messages and the generation prompt.

        Args:
            messages: Initial messages, such as a system and a user message.
            tools: Tools that the model may call.

        Raises:
            PolicyError: If the template rejects the messages.
        """
        begins, offered = tuple(messages), tuple(tools)
        return self._prompts.get_or_create(begins, offered, lambda: self._render_opening(begins, offered))

    def _render_opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Context:
        declared = tuple(self._break_tools(tools))
        spoken = self._merge_system_message(self._convert_untrusted(messages, None, declared))
        if not self.dialect.shows_tools:
            spoken = self._with_tools(spoken, self.format.describe(declared))
        return self._render_segment(spoken, declared)

    def extend(
        self, context: Context, sampled: Sequence[int], messages: Sequence[Message], *, max_calls: int | None = None
    ) -> Context:
        """Return the context after a sampled turn and the messages that follow it.

        The new context starts with exactly the tokens of `context` and the sampled ones, unless the template rewrites
        the history; then `opens_segment` is set.

        Args:
            context: Context from which the turn was sampled.
            sampled: [T] token ids of the turn, including the token that ended it.
            messages: Messages after the turn, such as tool results.
            max_calls: Maximum number of calls of the turn; see `read`.

        Raises:
            PolicyError: If the template rejects the conversation.
        """
        key = id(context), tuple(sampled), tuple(messages), max_calls
        _, extended = self._continuations.get_or_create(
            key, context.tools, lambda: (context, self._extend(context, sampled, messages, max_calls))
        )
        return extended

    def _extend(
        self, context: Context, sampled: Sequence[int], messages: Sequence[Message], max_calls: int | None
    ) -> Context:
        speech = self._parse_turn_parts(self._text(sampled), context, max_calls)
        answers = self._convert_untrusted(messages, speech, context.tools)
        ended = sampled[-1] if sampled and sampled[-1] in self.stop_ids else None
        closed = self.dialect.thought_signs[1] in speech.text
        parts = closed, bool(speech.thought), bool(speech.content), len(speech.calls)
        block = TurnBlock(len(context.rendered) - 1, (speech, *answers), (*parts, ended, *(m["role"] for m in answers)))
        after = (*context.spoken, *block.entries)
        try:
            written = self._render_continuation(context, block, ended)
        except HistoryRewritten as why:
            self.rewritten = self.rewritten or str(why)
            return self._render_segment(after, context.tools)
        new, segments = TokenSequence(self.encode(written)), (*context.rendered, written)
        tokens = context.tokens + TokenSequence(sampled) + new
        same = [each for each in context.examples if each.kind == block.kind]
        examples = (*(each for each in context.examples if each not in same[1:]), block)
        return replace(
            context, tokens=tokens, new=new, opens_segment=False, spoken=after, rendered=segments, examples=examples
        )

    def read(
        self, sampled: Sequence[int], tools: Sequence[ToolSpec], *, turn: int, max_calls: int | None = None
    ) -> Message:
        """Parse the sampled tokens of a turn into an assistant message.

        A thought is part of the message's text, within `<think>` tags.

        Args:
            sampled: [T] token ids of the turn.
            tools: Available tools.
            turn: Index of the turn in the episode; call ids are `call_{turn}_{index}`.
            max_calls: Maximum number of calls; further calls are dropped. With 0, text that looks like a call is kept
                as text.
        """
        thought, _, message = self._split_turn(self._text(sampled), tools, max_calls)
        calls = tuple(replace(call, id=f"call_{turn}_{i}") for i, call in enumerate(message.tool_calls))
        text = thought + message.text
        return replace(message, content=(Text(text),) if text else (), tool_calls=calls)

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the token ids that a model would have sampled for a message, including the token that ends the turn.

        Raises:
            ValueError: If the tool-call format cannot express the message.
        """
        text, end = self.write_turn(message, tools)
        return (*self.encode(text), end)

    def write_turn(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[str, int]:
        """Return the text that a model would have sampled for a message, and the id of the token that ends the turn.

        Raises:
            ValueError: If the tool-call format cannot express the message.
        """
        text = self._write_text(message, tools)
        end = self._ends.call if message.tool_calls else self._ends.answer
        sign = self._text_of(end)  # a marker of the format can be the end of the turn
        return (text.removesuffix(sign) if sign in self.format.markers else text), end

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokenize a text without adding special tokens; unpaired surrogates become `�`.

        The results for recent short texts are cached: siblings often receive the same results of tools.
        """
        return self._encode_cached(text) if len(text) <= _MAX_CACHED_CHARACTERS else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(_HALF.sub("\ufffd", text), add_special_tokens=False))

    def _check(self) -> None:
        """Check that the template renders user messages and a generation prompt.

        Raises:
            PolicyError: If the template fails, or omits one of them.
        """
        prober = Prober(self._show)

        def show(messages: Sequence[Mapping[str, Any]], is_prompted: bool) -> str:
            return self._show(in_parts(messages) if prober.parts else messages, prober.no_tools, is_prompted)

        question = ({"role": "user", "content": _PROBE},)
        answered = ({"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE})
        opened, unopened, rendered = show(question, True), show(question, False), show(answered, False)
        if _PROBE not in opened:
            raise PolicyError(
                f"{self._named}: its chat template does not render user messages; use a model with another template"
            )
        before, _, _ = rendered.partition(_PROBE)
        header = before.removeprefix(show(answered[:1], True))
        if opened == unopened and header != before and header.strip():
            raise PolicyError(
                f"{self._named}: its chat template has no generation prompt (add_generation_prompt changes nothing): "
                f"the model would answer without {header.strip()!r} before its answer"
            )

    def _render_segment(self, spoken: Spoken, tools: tuple[ToolSpec, ...]) -> Context:
        """Render the full context as a new segment.

        Look-alikes of special tokens in the model's turns are broken up.
        """
        cleared = tuple(self._break_turn(m, tools) if isinstance(m, TurnParts) else m for m in spoken)
        written = self._render(cleared, tools, True)
        tokens = TokenSequence(self.encode(written))
        return Context(tokens, tokens, True, spoken, tools, (written,), len(spoken))

    def _render_continuation(self, context: Context, block: TurnBlock, ended: int | None) -> str:
        """Return the text that the template writes after the last turn of the model.

        So that the time per turn does not grow, later turns are rendered after the first and the last block of each
        kind only. If the template renders one of these differently than before, all are rendered. A template that
        depends on the number of turns is detected at the next power of two, when all are rendered in any case.

        Args:
            context: Context before the turn.
            block: The turn and the messages that follow it.
            ended: Id of the sampled token that ended the turn; None if the turn was truncated.

        Raises:
            HistoryRewritten: If the template renders the existing context differently.
        """
        count = block.number + 1
        if count > _ALL_RENDERED_TURNS and count & (count - 1) and any(e.kind == block.kind for e in context.examples):
            with suppress(HistoryRewritten, PolicyError):
                return self._render_after(context, context.examples, block, ended)
        entries = context.spoken[context.opened :]
        starts = [i for i, each in enumerate(entries) if isinstance(each, TurnParts)]
        blocks = [TurnBlock(n, entries[i:j]) for n, (i, j) in enumerate(pairwise((*starts, len(entries))))]
        return self._render_after(context, blocks, block, ended)

    def _render_after(self, context: Context, before: Sequence[TurnBlock], block: TurnBlock, ended: int | None) -> str:
        """Return the text after the turn of a block, in a conversation with these blocks before it."""
        opening, blocks = context.spoken[: context.opened], (*before, block)
        entries = [entry for each in blocks for entry in each.entries]
        mark = choose_placeholder([m.text if isinstance(m, TurnParts) else m for m in (*opening, *entries)])
        old = tuple(self._break_turn(m, context.tools) if isinstance(m, TurnParts) else m for m in opening)
        marked = [with_placeholders(each.turn, f"{mark}{number}x") for number, each in enumerate(blocks)]
        inserted = (entry for turn, each in zip(marked, blocks, strict=True) for entry in (turn, *each.entries[1:]))
        rendered = self._render((*old, *inserted), context.tools, True)
        if not rendered.startswith(context.rendered[0]):
            raise HistoryRewritten("it renders the initial messages differently")
        place, closing_thought = len(context.rendered[0]), self.dialect.thought_signs[1]
        for turn, each in zip(marked, blocks, strict=True):
            spots = {rendered.find(text, place): len(text) for text in list_placeholders(turn)}
            begins = min(spots)
            if begins < 0:
                raise HistoryRewritten("it drops the text or thought of an earlier turn")
            ends = max(at + length for at, length in spots.items())
            if (closing_thought in each.turn.text) != (closing_thought in rendered[place:ends]):
                raise HistoryRewritten("it adds or removes the end of a thought")
            place = ends
            if each is not block:
                begins = rendered.find(context.rendered[each.number + 1], place)
                if begins < 0:
                    raise HistoryRewritten("it renders the text between two turns differently")
                place = begins + len(context.rendered[each.number + 1])
        after_turn = rendered[place:]
        stop = min((at for text in self._stops if (at := after_turn.find(text)) >= 0), default=-1)
        answers = [str(m["content"]) for m in block.entries[1:] if isinstance(m, dict)]
        if stop < 0 or not all(is_rendered(text, after_turn[stop:]) for text in answers):
            raise HistoryRewritten("it renders a result in another place")
        if ended is None:
            return after_turn[stop:]
        if not after_turn.startswith(end_text := self._text_of(ended), stop):
            raise HistoryRewritten("it ends a turn differently than the model did")
        return after_turn[stop + len(end_text) :]

    def _text(self, sampled: Sequence[int]) -> str:
        """Decode the sampled tokens of a turn, without the token that ended it."""
        ended = bool(sampled) and sampled[-1] in self.stop_ids and self._text_of(sampled[-1]) not in self.format.markers
        return str(self.tokenizer.decode(sampled[:-1] if ended else sampled, skip_special_tokens=False))

    def _text_of(self, token: int) -> str:
        return self._token_text.get(token) or str(self.tokenizer.decode([token], skip_special_tokens=False))

    def _split_turn(self, text: str, tools: Sequence[ToolSpec], limit: int | None = None) -> tuple[str, str, Message]:
        """Split the text of a turn into (thought with its tags, thought, message with text and calls).

        A turn is split when it was sampled, and again when its context is extended; results for short texts are cached.
        """
        if len(text) > _MAX_CACHED_CHARACTERS:
            return self._split_new_turn(text, tools, limit)
        return self._turns.get_or_create((text, limit), tools, lambda: self._split_new_turn(text, tools, limit))

    def _split_new_turn(self, text: str, tools: Sequence[ToolSpec], limit: int | None) -> tuple[str, str, Message]:
        opening, closing = self.dialect.thought_signs
        if self._ends.thought_end_separates_calls and not text.lstrip().startswith(opening.lstrip()):
            closing = ""  # the tag that ends a thought also separates calls, and this turn has no thought

        def read_rest(rest: str) -> Message:
            return self.format.read(rest, tools)

        raw, message = read_after_thought(text, closing, read_rest, opening=opening)
        signed = raw
        if signed.lstrip().startswith(closing) and signed.count(closing) > 1:
            signed = signed.lstrip().removeprefix(closing)  # an empty thought before it
        before, sign, after = signed.partition(opening)
        if sign and before.strip() in self._token_text.values():
            signed = sign + after  # a token of the template before the thought
        if signed and self.dialect.said_sign.strip():
            signed = signed.lstrip().removeprefix(self.dialect.said_sign.strip()).lstrip()
        if limit == 0 and (message.tool_calls or message.malformed):
            sign = next((stop for stop in self._stops if text.endswith(stop)), "")
            message = Message("assistant", (Text(text[len(raw) :].removesuffix(sign)),))
        message = replace(message, tool_calls=message.tool_calls[:limit])
        thought = signed.removesuffix(closing).strip().removeprefix(closing).strip().removeprefix(opening).strip()
        message = with_text(message, self._without_frame(message.text))
        if signed and opening != "<think>":  # readers of messages expect one notation of thoughts
            signed = f"<think>\n{thought}\n</think>\n\n"
        return signed, thought, message

    def _without_frame(self, text: str) -> str:
        """Remove the tags that the template writes around the text of a turn."""
        opening = self.dialect.said_sign.strip()
        if opening and text.lstrip().startswith(opening):
            text = text.lstrip().removeprefix(opening)
        end = self._text_end.search(text) if self._ends.text_end else None
        return text if end is None else text[: end.start()]

    def _parse_turn_parts(self, text: str, context: Context, max_calls: int | None = None) -> TurnParts:
        """Split the text of a turn into the parts that the template receives."""
        _, thought, message = self._split_turn(text, context.tools, max_calls)
        closing = self.dialect.thought_signs[1]
        content = message.text.strip() if closing in text else message.text
        before = sum(len(m.calls) for m in context.spoken if isinstance(m, TurnParts))
        if message.malformed or not self.dialect.writes_calls:
            return TurnParts(text, thought, text.rpartition(closing)[2].strip() if closing in text else text)
        calls = tuple(
            replace(call, id=self.dialect.id_of(call, before + index)) for index, call in enumerate(message.tool_calls)
        )
        if closing not in text and self._begins_thought(context.rendered[-1]):
            return TurnParts(text, content.strip(), "", calls)  # truncated within its thought, or a call within it
        return TurnParts(text, thought, content, calls)

    def _break_turn(self, speech: TurnParts, tools: Sequence[ToolSpec]) -> TurnParts:
        """Return a turn in which look-alikes of special tokens are broken up, except the syntax of calls."""
        thought, content = self._break_special(speech.thought), self._break_special(speech.content)
        if not self.dialect.writes_calls:
            message = self.format.read(speech.content, tools)
            if message.tool_calls and not message.malformed:
                parts = (Text(self._break_special(message.text)),) if message.text else ()
                calls = tuple(map(self._break_call, message.tool_calls))
                with suppress(ValueError):  # a call the format cannot write once it is cleared stays text
                    content = self.format.write(replace(message, content=parts, tool_calls=calls), tools)
        return replace(speech, thought=thought, content=content, calls=tuple(map(self._break_call, speech.calls)))

    def _break_call(self, call: ToolCall) -> ToolCall:
        try:
            arguments = json.dumps(self._safe_in(json.loads(call.arguments)))
        except (ValueError, RecursionError):
            arguments = self._break_special(call.arguments)
        return replace(call, name=self._break_special(call.name), arguments=arguments)

    def _write_text(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn that contains this message.

        The text is as the template renders the message if it is parsed back into the same message, else as the format
        writes it.
        """
        signed, closed, content = message.text.rpartition("</think>")
        thought, content = signed.strip().removeprefix("<think>").strip(), content.strip() if closed else content
        question: dict[str, Any] = {"role": "user", "content": "x"}
        opened = self._render((question,), tools, True)
        if self.dialect.shows_tools or self.dialect.writes_calls:
            unnamed = [replace(call, id="") for call in message.tool_calls]
            calls = tuple(replace(call, id=self.dialect.id_of(call, index)) for index, call in enumerate(unnamed))
            following: dict[str, Any] = question
            if calls:
                following = {"role": "tool", "tool_call_id": calls[-1].id, "name": calls[-1].name, "content": "x"}
            # as it is in the history; the template may add text to the last turn only
            for next_messages in ((following,), ()):
                text = self._extract_turn(
                    opened, (question, TurnParts("", thought, content, calls), *next_messages), tools
                )
                _, back, read = self._split_turn(text, tools)
                same = _same_calls(read.tool_calls, message.tool_calls) and not read.malformed
                if text and same and (back, read.text.strip()) == (thought, content.strip()):
                    return text
        opening = self.dialect.thought_signs[0]
        written = self.format.write(replace(message, content=(Text(content),) if content else ()), tools)
        if not message.tool_calls:
            written = self.dialect.said_sign + written + self._ends.text_end
        begun = self._begins_thought(opened)
        before, behind_it = self.dialect.thought_frame
        if not closed:
            return f"{behind_it}{written}" if begun else written
        if (begun, opening) == (False, "<think>"):
            return f"{signed}{closed}\n\n{written}" if content != message.text else written
        return f"{'' if begun else before}{thought}{behind_it}{written}"

    def _extract_turn(self, opened: str, spoken: Spoken, tools: Sequence[ToolSpec]) -> str:
        """Return the text of the model's turn in a rendered conversation.

        Empty if it cannot be separated from the rest.
        """
        try:
            rendered = self._render(spoken, tools, False)
        except PolicyError:
            return ""
        if not rendered.startswith(opened):
            return ""
        text = rendered[len(opened) :]
        stops = [(at, sign) for sign in self._stops if (at := text.find(sign)) >= 0]
        if not stops:  # some templates end the last turn of all without a token
            return "" if spoken[2:] else text.rstrip()
        at, sign = min(stops)
        return text[: at + len(sign)] if sign in self.format.markers else text[:at]

    def _begins_thought(self, prompt: str) -> bool:
        """Return whether a generation prompt ends with the opening tag of a thought."""
        opening = self.dialect.thought_signs[0]
        return bool(opening) and prompt.rstrip().endswith(opening)

    def _merge_system_message(self, spoken: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        """Merge a system message into the user message after it if the template does not render system messages."""
        if self.knows_system or len(spoken) < 2 or [m["role"] for m in spoken[:2]] != ["system", "user"]:
            return spoken
        return ({**spoken[1], "content": f"{spoken[0]['content']}\n\n{spoken[1]['content']}"}, *spoken[2:])

    def _render(self, spoken: Spoken, tools: Sequence[ToolSpec], generation_prompt: bool) -> str:
        """Render messages and turns of the model with the template.

        Raises:
            PolicyError: If the template fails, or rejects the conversation.
        """
        messages = [self.dialect.convert_turn(m) if isinstance(m, TurnParts) else m for m in spoken]
        passed_tools: Any = (
            [tool.to_openai() for tool in tools] if self.dialect.shows_tools and tools else self.dialect.no_tools
        )
        return self._show(in_parts(messages) if self.dialect.parts else messages, passed_tools, generation_prompt)

    def _convert_untrusted(
        self, messages: Sequence[Message], speech: TurnParts | None, tools: Sequence[ToolSpec]
    ) -> tuple[dict[str, Any], ...]:
        """Convert untrusted messages into messages for the template, with look-alikes of special tokens broken up.

        Args:
            messages: Untrusted messages.
            speech: Turn of the model before the messages; None if they are the first.
            tools: Available tools.
        """
        safe = [replace(message, content=(Text(self._safe(to_text(message))),)) for message in messages]
        if not self.dialect.writes_calls:  # earlier calls are text of the model
            safe = [
                replace(m, content=(Text(write_as_text(self.format, m, tools)),)) if m.tool_calls else m for m in safe
            ]
        if not self.dialect.shows_answers:
            return tuple({"role": m.role, "content": m.text} for m in self.format.results(safe))
        converted: list[dict[str, Any]] = []
        called = list(speech.calls) if speech is not None else []
        for number, message in enumerate(safe):
            if message.role == "assistant":
                parts = TurnParts("", "", message.text, message.tool_calls)
                called = [replace(c, id=self.dialect.id_of(c, i)) for i, c in enumerate(message.tool_calls)]
                converted.append(self.dialect.convert_turn(replace(parts, calls=tuple(called))))
                continue
            if message.role != "tool":
                converted.append({"role": message.role, "content": message.text})
                continue
            match = _ANSWERS.fullmatch(message.tool_call_id or "")
            index = int(match[1]) if match is not None else number
            if index < len(called):
                call = called[index]
                converted.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": message.text})
            elif not self.dialect.writes_calls:
                converted.append({"role": "tool", "content": message.text})
            elif converted:  # a result without a call: a malformed call is no call for the template either
                converted[-1] = {**converted[-1], "content": f"{converted[-1]['content']}\n{message.text}"}
            else:
                converted.append({"role": "user", "content": message.text})
        return tuple(converted)

    def _break_tools(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools with look-alikes broken up in names, descriptions and schemas, which are untrusted."""
        if not self._breaks("\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)):
            return tools
        return [
            ToolSpec(self._safe(tool.name), self._safe(tool.description), self._safe_in(tool.parameters))
            for tool in tools
        ]

    def _safe_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._safe(value)
        if isinstance(value, Mapping):
            return {self._safe(str(key)): self._safe_in(inner) for key, inner in value.items()}
        return [self._safe_in(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _breaks(self, text: str) -> bool:
        """Return whether a text contains the text of a special token, or is tokenized into a special token."""
        return bool(self._look_alike.search(text)) or not self._special_ids.isdisjoint(self.encode(text))

    def _safe(self, text: str) -> str:
        """Return a text in which no special token remains after any normalization of the tokenizer.

        Raises:
            PolicyError: If every variant of the text is still tokenized into a special token.
        """
        # some tokenizers normalize letters: full-width characters, or they drop a zero-width space
        folded = unicodedata.normalize("NFKC", text)
        spaced = self._look_alike.sub(lambda match: " ".join(match.group()), folded)
        for candidate in (self._break_special(text), self._break_special(folded), spaced):
            if self._special_ids.isdisjoint(self.encode(candidate)):
                return candidate
        raise PolicyError(
            f"{self._named}: a message contains text that the tokenizer always reads as a special token: {text[:40]!r}"
        )

    def _break_special(self, text: str) -> str:
        """Insert a zero-width space after the first character of each text that equals a special token or marker.

        The result looks the same and is tokenized differently.
        """
        return self._look_alike.sub(lambda match: match.group()[0] + "\u200b" + match.group()[1:], text)

    def _with_tools(self, spoken: tuple[dict[str, Any], ...], description: str) -> tuple[dict[str, Any], ...]:
        if not description:
            return spoken
        if spoken and spoken[0]["role"] == "system":
            return ({**spoken[0], "content": f"{spoken[0]['content']}\n\n{description}"}, *spoken[1:])
        if self.knows_system:
            return ({"role": "system", "content": system(description).text}, *spoken)
        return ({**spoken[0], "content": f"{description}\n\n{spoken[0]['content']}"}, *spoken[1:])

    def _accepts_system(self) -> bool:
        """Return whether the template renders system messages.

        Some templates (Gemma) reject or drop them.
        """
        try:
            rendered = self._render(({"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}), (), True)
        except PolicyError:  # the only possible cause is a rejected system message
            return False
        return _PROBE in rendered


def _same_calls(read: Sequence[ToolCall], wanted: Sequence[ToolCall]) -> bool:
    try:
        return [(c.name, json.loads(c.arguments)) for c in read] == [(c.name, json.loads(c.arguments)) for c in wanted]
    except (ValueError, RecursionError):
        return False


def choose_placeholder(conversation: Sequence[Any]) -> str:
    """Return a placeholder text that does not occur in a conversation."""
    texts = json.dumps(conversation)
    return next(mark for number in range(len(texts) + 1) if (mark := f"qz{number}q") not in texts)


def with_placeholders(speech: TurnParts, mark: str) -> TurnParts:
    """Return a turn with a placeholder for each of its parts, to find out which parts the template renders."""
    calls = tuple(replace(c, arguments=json.dumps({"x": f"{mark}{i}x"})) for i, c in enumerate(speech.calls))
    content = f"{mark}cx" if speech.content or not (calls or speech.thought) else ""
    return TurnParts(speech.text, f"{mark}tx" if speech.thought else "", content, calls)


def list_placeholders(marked: TurnParts) -> list[str]:
    """Return the placeholders of a turn that must occur in the rendered text."""
    calls = [json.loads(call.arguments)["x"] for call in marked.calls]
    return [text for text in (marked.thought, marked.content, *calls) if text]


def is_rendered(text: str, rendered: str) -> bool:
    """Return whether the first line of a message occurs in a rendered text, as it is or as a JSON string."""
    first = text.strip().partition("\n")[0][:40].strip()
    return (
        first in rendered
        or json.dumps(first)[1:-1] in rendered
        or json.dumps(first, ensure_ascii=False)[1:-1] in rendered
    )
