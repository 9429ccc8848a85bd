"""How do messages become tokens without ever re-tokenising what the model said?

    ids of turn t+1  =  ids of turn t  +  sampled ids  +  ids of the new messages as the template shows them

The sampled ids are the record. What the template puts behind them is found by rendering the conversation in which the
model's turns are marks, so any template works unchanged, in whatever way it writes calls. Marks also say what it keeps:
where one is missing (earlier thinking is dropped), or what stands between them is not what is in view (the system
message has moved), the template has rewritten history, and a new segment opens with everything rendered afresh.

Easy to get wrong: encode(decode(ids)) is often not ids; and a tool result that contains
`<|im_end|>` must not end the turn, so such look-alikes in foreign text are broken up first.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from whetstone.chat.dialect import (
    Prober,
    Rewritten,
    Speech,
    in_parts,
    learned,
)
from whetstone.chat.marks import is_in, mark_for, marked, marks
from whetstone.chat.message import Message, Text, ToolCall, ToolSpec, system, with_text
from whetstone.chat.openings import Openings
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.rendering import Variable, in_text, in_words, name_of, rendered, tells_time
from whetstone.chat.thoughts import read_after_thought
from whetstone.chat.turn_ends import Vocabulary, end_pattern, find_turn_ends
from whetstone.errors import PolicyError
from whetstone.tokens import TokenSequence

Spoken = tuple[dict[str, Any] | Speech, ...]
"""A conversation: messages from outside as the template reads them, and what the model said."""

_HALF = re.compile("[\ud800-\udfff]")
_PROBE = "\ue000probe\ue000"  # private-use characters: no template and no text contains them
_ANSWERS = re.compile(r"call_\d+_(\d+)")


@dataclass(frozen=True, slots=True)
class Context:
    """All that the model has in view, and what of it is new."""

    tokens: TokenSequence
    """[T] the whole context, ready to be continued by the model."""
    new: TokenSequence
    """[T'] tokens after the last sampled one; all of `tokens` if `opens_segment`."""
    opens_segment: bool
    spoken: Spoken
    """The same as messages, the model's own as what it said."""
    tools: tuple[ToolSpec, ...] = ()
    """On offer."""
    shown: tuple[str, ...] = ()
    """What of the segment the template wrote: up to the model's first turn in it, then between its turns."""
    opened: int = 0
    """Messages of `spoken` that stand in the first of `shown`."""

    @property
    def ids(self) -> tuple[int, ...]:
        """[T] ids of `tokens`."""
        return self.tokens.ids


class Chat:
    """One tokenizer's template and one tool-call format: messages ⇄ tokens.

    Args:
        variables: What the template is given besides, by name, such as `enable_thinking`.

    Raises:
        PolicyError: The tokenizer has no chat template, or one that cannot be used: it fails, takes more time or memory
            than it may, drops what the user says, has no generation prompt, or never closes the model's turn. Or it
            never reads one of the variables.
    """

    def __init__(self, tokenizer: Any, format: ToolCallFormat, variables: Mapping[str, Variable] | None = None) -> None:
        self.tokenizer, self.format, self.variables = tokenizer, format, dict(variables or {})
        self.rewritten = ""
        """Why the template first had to open a new segment in the middle of an episode; empty: it never had to."""
        self._named = name_of(tokenizer)
        self._show = rendered(tokenizer, self.variables)
        self._openings = Openings[Context](remembers=not tells_time(tokenizer))
        added = tokenizer.added_tokens_decoder
        self._token_text = {i: str(token.content) for i, token in added.items()}
        self.look_alikes = tuple(sorted({*self._token_text.values(), *format.markers}, key=len, reverse=True))
        """Texts of special tokens and markers, the longest first; they are broken up in messages from outside."""
        # words are in there, too, where a tokenizer was made with some of its own: those are text
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._look_alike = re.compile("|".join(map(re.escape, self.look_alikes)))
        self._check()
        self.dialect = learned(Prober(self._show), format, set(self._token_text.values()))
        """How the template is spoken to."""
        self.knows_system = self._accepts_system()
        """Whether the template shows system messages."""
        vocabulary = Vocabulary(self.encode, self._token_text, self._special_ids, tokenizer.eos_token_id)
        ends = find_turn_ends(self._named, self.dialect, self._render, Prober(self._show), vocabulary)
        self._ends = ends
        self.stop_ids = ends.stop_ids
        """A turn ends when the model samples one of these tokens."""
        self._stops = tuple(dict.fromkeys(self._text_of(i) for i in sorted(self.stop_ids)))
        self._text_end = end_pattern(ends.text_end)

    @property
    def frame_signs(self) -> tuple[str, ...]:
        """Texts that the template writes around text and thoughts of a turn, which are no part of either."""
        signs = (self.dialect.said_sign, self._ends.text_end, *self.dialect.thought_signs)
        return tuple(dict.fromkeys(sign.strip() for sign in signs if sign.strip()))

    def __reduce__(self) -> tuple[type[Chat], tuple[Any, ToolCallFormat, dict[str, Variable]]]:
        """Another process compiles the template itself."""
        return Chat, (self.tokenizer, self.format, self.variables)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Context:
        """The context an episode begins with: the tools on offer, the opening messages, the model's turn."""
        begins, offered = tuple(messages), tuple(tools)
        return self._openings.of(begins, offered, lambda: self._opened(begins, offered))

    def _opened(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Context:
        declared = tuple(self._declared(tools))
        spoken = self._to_whom_it_knows(self._foreign(messages, None, declared))
        if not self.dialect.shows_tools:
            spoken = self._with_tools(spoken, self.format.describe(declared))
        return self._afresh(spoken, declared)

    def extend(
        self, context: Context, sampled: Sequence[int], messages: Sequence[Message], *, max_calls: int | None = None
    ) -> Context:
        """Return the context after the sampled tokens and the messages that answer them; `max_calls`: see `read`."""
        speech = self._speech(self._text(sampled), context, max_calls)
        after = (*context.spoken, speech, *self._foreign(messages, speech, context.tools))
        ended = sampled[-1] if sampled and sampled[-1] in self.stop_ids else None
        try:
            written = self._continued(context, after, ended)
        except Rewritten as why:
            self.rewritten = self.rewritten or str(why)
            return self._afresh(after, context.tools)
        new, shown = TokenSequence(self.encode(written)), (*context.shown, written)
        tokens = context.tokens + TokenSequence(sampled) + new
        return replace(context, tokens=tokens, new=new, opens_segment=False, spoken=after, shown=shown)

    def read(
        self, sampled: Sequence[int], tools: Sequence[ToolSpec], *, turn: int, max_calls: int | None = None
    ) -> Message:
        """Parse the sampled tokens of a turn; call ids are unique within the episode.

        Calls after the first `max_calls` are left out. With 0, text that looks like a call is text.
        """
        thought, _, message = self._taken_apart(self._text(sampled), tools, max_calls)
        calls = tuple(replace(call, id=f"call_{turn}_{i}") for i, call in enumerate(message.tool_calls))
        said = thought + message.text
        return replace(message, content=(Text(said),) if said else (), tool_calls=calls)

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """A message as the tokens a model would have sampled for it, end of turn included."""
        text, end = self.write_turn(message, tools)
        return (*self.encode(text), end)

    def write_turn(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[str, int]:
        """Return a message as the text of a turn, and the token that ends the turn and is not part of that text."""
        text = self._written(message, tools)
        end = self._ends.call if message.tool_calls else self._ends.answer
        sign = self._text_of(end)  # a marker of the format can be the end of the turn
        return (text.removesuffix(sign) if sign in self.format.markers else text), end

    def encode(self, text: str) -> tuple[int, ...]:
        """A text as tokens, nothing added; half a letter, which no tokenizer reads, is read as `�`."""
        return tuple(self.tokenizer.encode(_HALF.sub("\ufffd", text), add_special_tokens=False))

    def _check(self) -> None:
        """See that the template carries a conversation.

        Raises:
            PolicyError: It fails, or leaves something out that a conversation needs.
        """
        prober = Prober(self._show)

        def show(messages: Sequence[Mapping[str, Any]], asked: bool) -> str:
            return self._show(in_parts(messages) if prober.parts else messages, prober.no_tools, asked)

        asked = ({"role": "user", "content": _PROBE},)
        said = ({"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE})
        opened, unopened, whole = show(asked, True), show(asked, False), show(said, False)
        if _PROBE not in opened:
            raise PolicyError(f"{self._named}: its chat template does not show what the user says")
        before, _, _ = whole.partition(_PROBE)
        header = before.removeprefix(show(said[:1], True))
        if opened == unopened and header != before and header.strip():
            raise PolicyError(
                f"{self._named}: its chat template has no generation prompt (add_generation_prompt changes nothing): "
                f"the model would be asked without {header.strip()!r} in front of its answer"
            )

    def _afresh(self, spoken: Spoken, tools: tuple[ToolSpec, ...]) -> Context:
        """Everything as the template renders it; in what the model said, its own tokens are broken up."""
        cleared = tuple(self._cleared(m, tools) if isinstance(m, Speech) else m for m in spoken)
        written = self._render(cleared, tools, True)
        tokens = TokenSequence(self.encode(written))
        return Context(tokens, tokens, True, spoken, tools, (written,), len(spoken))

    def _continued(self, context: Context, after: Spoken, ended: int | None) -> str:
        """What the template puts behind the last turn of the model.

        Raises:
            Rewritten: It does not keep what is in view.
        """
        mark = mark_for([m.text if isinstance(m, Speech) else m for m in after])
        turns = [m for m in after[context.opened :] if isinstance(m, Speech)]
        by_turn = {id(turn): marked(turn, f"{mark}{number}x") for number, turn in enumerate(turns)}
        old = tuple(self._cleared(m, context.tools) if isinstance(m, Speech) else m for m in after[: context.opened])
        whole = self._render((*old, *(by_turn.get(id(m), m) for m in after[context.opened :])), context.tools, True)
        if not whole.startswith(context.shown[0]):
            raise Rewritten("it shows the beginning otherwise")
        place, closing_thought = len(context.shown[0]), self.dialect.thought_signs[1]
        for number, turn in enumerate(turns):
            spots = {whole.find(text, place): len(text) for text in marks(by_turn[id(turn)])}
            begins = min(spots)
            if begins < 0:
                raise Rewritten("it drops what an earlier turn said, or thought")
            ends = max(at + length for at, length in spots.items())
            if (closing_thought in turn.text) != (closing_thought in whole[place:ends]):
                raise Rewritten("it sets the end of a thought where the model did not, or takes it away")
            place = ends
            if number < len(turns) - 1:
                begins = whole.find(context.shown[number + 1], place)
                if begins < 0:
                    raise Rewritten("it shows what stood between two turns otherwise")
                place = begins + len(context.shown[number + 1])
        behind = whole[place:]
        stop = min((at for text in self._stops if (at := behind.find(text)) >= 0), default=-1)
        answers = after[next(i for i in range(len(after), 0, -1) if isinstance(after[i - 1], Speech)) :]
        if stop < 0 or not all(is_in(str(m["content"]), behind[stop:]) for m in answers if isinstance(m, dict)):
            raise Rewritten("it shows an answer in another place")
        if ended is None:
            return behind[stop:]
        said = self._text_of(ended)
        if not behind.startswith(said, stop):
            raise Rewritten("it ends a turn otherwise than the model did")
        return behind[stop + len(said) :]

    def _text(self, sampled: Sequence[int]) -> str:
        """The model's tokens as text, without the one that ended the turn."""
        ended = bool(sampled) and sampled[-1] in self.stop_ids and self._text_of(sampled[-1]) not in self.format.markers
        return str(self.tokenizer.decode(sampled[:-1] if ended else sampled, skip_special_tokens=False))

    def _text_of(self, token: int) -> str:
        return self._token_text.get(token) or str(self.tokenizer.decode([token], skip_special_tokens=False))

    def _taken_apart(self, text: str, tools: Sequence[ToolSpec], limit: int | None = None) -> tuple[str, str, Message]:
        """(the thought with its signs, the thought alone, the message it says and calls)"""
        opening, closing = self.dialect.thought_signs
        if self._ends.thought_end_separates_calls and not text.lstrip().startswith(opening.lstrip()):
            closing = ""  # what ends a thought also separates calls, and this turn has no thought

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
        if signed and opening != "<think>":  # whoever reads the message knows one way to write a thought
            signed = f"<think>\n{thought}\n</think>\n\n"
        return signed, thought, message

    def _without_frame(self, text: str) -> str:
        """Remove the frame that the template writes around the text of a turn."""
        opening = self.dialect.said_sign.strip()
        if opening and text.lstrip().startswith(opening):
            text = text.lstrip().removeprefix(opening)
        end = self._text_end.search(text) if self._ends.text_end else None
        return text if end is None else text[: end.start()]

    def _speech(self, text: str, context: Context, max_calls: int | None = None) -> Speech:
        """What was said, as the template is told of it."""
        _, thought, message = self._taken_apart(text, context.tools, max_calls)
        closing = self.dialect.thought_signs[1]
        content = message.text.strip() if closing in text else message.text
        before = sum(len(m.calls) for m in context.spoken if isinstance(m, Speech))
        if message.malformed or not self.dialect.writes_calls:
            return Speech(text, thought, text.rpartition(closing)[2].strip() if closing in text else text)
        calls = tuple(
            replace(call, id=self.dialect.id_of(call, before + index)) for index, call in enumerate(message.tool_calls)
        )
        if closing not in text and self._begins_thought(context.shown[-1]):
            return Speech(text, content.strip(), "", calls)  # cut in its thought, or called in it
        return Speech(text, thought, content, calls)

    def _cleared(self, speech: Speech, tools: Sequence[ToolSpec]) -> Speech:
        """The same, with every look-alike of a special token broken up but those that make a call of it."""
        thought, content = self._break_special(speech.thought), self._break_special(speech.content)
        if not self.dialect.writes_calls:
            message = self.format.read(speech.content, tools)
            if message.tool_calls and not message.malformed:
                said = (Text(self._break_special(message.text)),) if message.text else ()
                calls = tuple(map(self._cleared_call, message.tool_calls))
                with suppress(ValueError):  # a call the format cannot write once it is cleared stays text
                    content = self.format.write(replace(message, content=said, tool_calls=calls), tools)
        return replace(speech, thought=thought, content=content, calls=tuple(map(self._cleared_call, speech.calls)))

    def _cleared_call(self, call: ToolCall) -> ToolCall:
        try:
            arguments = json.dumps(self._safe_in(json.loads(call.arguments)))
        except (ValueError, RecursionError):
            arguments = self._break_special(call.arguments)
        return replace(call, name=self._break_special(call.name), arguments=arguments)

    def _written(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """A message as the template writes it, where the format reads that back; else as the format writes it."""
        signed, closed, content = message.text.rpartition("</think>")
        thought, content = signed.strip().removeprefix("<think>").strip(), content.strip() if closed else content
        asked: dict[str, Any] = {"role": "user", "content": "x"}
        opened = self._render((asked,), tools, True)
        if self.dialect.shows_tools or self.dialect.writes_calls:
            unnamed = [replace(call, id="") for call in message.tool_calls]
            calls = tuple(replace(call, id=self.dialect.id_of(call, index)) for index, call in enumerate(unnamed))
            following: dict[str, Any] = asked
            if calls:
                following = {"role": "tool", "tool_call_id": calls[-1].id, "name": calls[-1].name, "content": "x"}
            # as it stays in history, where the template would put nothing there that does not stay
            for behind in ((following,), ()):
                text = self._turn(opened, (asked, Speech("", thought, content, calls), *behind), tools)
                _, back, read = self._taken_apart(text, tools)
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

    def _turn(self, opened: str, spoken: Spoken, tools: Sequence[ToolSpec]) -> str:
        """What the template writes for the model's turn up to its end; empty where it cannot be told apart."""
        try:
            whole = self._render(spoken, tools, False)
        except PolicyError:
            return ""
        if not whole.startswith(opened):
            return ""
        text = whole[len(opened) :]
        stops = [(at, sign) for sign in self._stops if (at := text.find(sign)) >= 0]
        if not stops:  # some templates end the last turn of all without a token
            return "" if spoken[2:] else text.rstrip()
        at, sign = min(stops)
        return text[: at + len(sign)] if sign in self.format.markers else text[:at]

    def _begins_thought(self, shown: str) -> bool:
        """Whether the model is asked in a thought that has begun."""
        opening = self.dialect.thought_signs[0]
        return bool(opening) and shown.rstrip().endswith(opening)

    def _to_whom_it_knows(self, spoken: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        """What the system says, said by the user where the template knows no system."""
        if self.knows_system or len(spoken) < 2 or [m["role"] for m in spoken[:2]] != ["system", "user"]:
            return spoken
        return ({**spoken[1], "content": f"{spoken[0]['content']}\n\n{spoken[1]['content']}"}, *spoken[2:])

    def _render(self, spoken: Spoken, tools: Sequence[ToolSpec], generation_prompt: bool) -> str:
        """The conversation as the template writes it.

        Raises:
            PolicyError: It fails, or refuses something in it.
        """
        messages = [self.dialect.speech(m) if isinstance(m, Speech) else m for m in spoken]
        given: Any = (
            [tool.to_openai() for tool in tools] if self.dialect.shows_tools and tools else self.dialect.no_tools
        )
        return self._show(in_parts(messages) if self.dialect.parts else messages, given, generation_prompt)

    def _foreign(
        self, messages: Sequence[Message], speech: Speech | None, tools: Sequence[ToolSpec]
    ) -> tuple[dict[str, Any], ...]:
        """Messages from outside as they are shown, with every look-alike of a special token broken up.

        Args:
            speech: What the model said before them; None: they are the beginning.
        """
        safe = [replace(message, content=(Text(self._safe(in_text(message))),)) for message in messages]
        if not self.dialect.writes_calls:  # earlier calls are what the model said
            safe = [replace(m, content=(Text(in_words(self.format, m, tools)),)) if m.tool_calls else m for m in safe]
        if not self.dialect.shows_answers:
            return tuple({"role": m.role, "content": m.text} for m in self.format.results(safe))
        shown: list[dict[str, Any]] = []
        called = list(speech.calls) if speech is not None else []
        for number, message in enumerate(safe):
            if message.role == "assistant":
                said = Speech("", "", message.text, message.tool_calls)
                called = [replace(c, id=self.dialect.id_of(c, i)) for i, c in enumerate(message.tool_calls)]
                shown.append(self.dialect.speech(replace(said, calls=tuple(called))))
                continue
            if message.role != "tool":
                shown.append({"role": message.role, "content": message.text})
                continue
            match = _ANSWERS.fullmatch(message.tool_call_id or "")
            index = int(match[1]) if match is not None else number
            if index < len(called):
                call = called[index]
                shown.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": message.text})
            elif not self.dialect.writes_calls:
                shown.append({"role": "tool", "content": message.text})
            elif shown:  # an answer to no call: what could not be read is no call to the template either
                shown[-1] = {**shown[-1], "content": f"{shown[-1]['content']}\n{message.text}"}
            else:
                shown.append({"role": "user", "content": message.text})
        return tuple(shown)

    def _declared(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Tools as they may be told of: names, texts and schemas come from outside as messages do."""
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
        """Whether the text holds a look-alike of a special token, or what the tokenizer takes for one."""
        return bool(self._look_alike.search(text)) or not self._special_ids.isdisjoint(self.encode(text))

    def _safe(self, text: str) -> str:
        """The text with every look-alike of a special token broken up, however the tokenizer reads it.

        Raises:
            PolicyError: No way to write it was found in which the tokenizer sees no special token.
        """
        # some tokenizers read other letters as the same: full-width signs, or nothing where there is a zero-width space
        folded = unicodedata.normalize("NFKC", text)
        spaced = self._look_alike.sub(lambda match: " ".join(match.group()), folded)
        for candidate in (self._break_special(text), self._break_special(folded), spaced):
            if self._special_ids.isdisjoint(self.encode(candidate)):
                return candidate
        raise PolicyError("a text from outside holds what the tokenizer takes for its own special tokens")

    def _break_special(self, text: str) -> str:
        """A zero-width space behind the first character: a person reads the same, the tokenizer does not."""
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
        """Some templates (Gemma) refuse or drop a system message; tools then go to the first user message."""
        try:
            shown = self._render(({"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}), (), True)
        except PolicyError:  # refusing is all it can mean here
            return False
        return _PROBE in shown


def _same_calls(read: Sequence[ToolCall], given: Sequence[ToolCall]) -> bool:
    try:
        return [(c.name, json.loads(c.arguments)) for c in read] == [(c.name, json.loads(c.arguments)) for c in given]
    except (ValueError, RecursionError):
        return False
