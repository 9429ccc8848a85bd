"""Detection of how a chat template renders tools, calls, results and thoughts, by rendering probe conversations.

The name of the model is not read. Short conversations with unique texts are rendered. Which of these texts appear,
where, and between which tags, determines how a conversation must be passed to this template. A template writes calls in
a tool-call format if the parser of the format reads them back.

Note:
    A template can accept an input silently and not render it. Only rendered text counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from whetstone.chat.message import ToolCall, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.errors import PolicyError

ASKED, SAID, THOUGHT, CALLED, ANSWERED = (f"qz{word}zq" for word in ("ask", "say", "think", "call", "answer"))
"""Probe texts: plain letters, which no template trims, escapes or breaks."""
TOOL = ToolSpec(
    "probe_tool",
    "qztoolzq",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "x"},
            "count": {"type": "integer", "description": "x"},
        },
        "required": ["text", "count"],
    },
)
"""Tool that the probe conversations offer and call."""
_ARGUMENTS: dict[str, Any] = {"text": f"{CALLED} b", "count": 3}
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "thoughts")
_TAGS = ("<think>", "</think>")
_OTHER_TAGS = (("[THINK]", "[/THINK]"), ("<|inner_prefix|>", "<|inner_suffix|>"))
"""Tags of thoughts that are tokens of a model, but that its template writes only if contents are lists of parts."""
_END = re.compile(r"\s*(?:<|\[|\Z)")
_FIRST_SIGN = re.compile(r"\s*(?:<[^<>]*>|\[/?\w+\])")

Shown = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]
"""Function (messages, tools, whether to add the generation prompt) → rendered text.

Raises `PolicyError` if the template rejects the messages.
"""


class HistoryRewritten(Exception):
    """Signal that the template renders earlier messages differently than before.

    The text describes the difference.

    `Chat.extend` catches it and renders the conversation again in a new segment.
    """


@dataclass(frozen=True, slots=True)
class TurnParts:
    """One turn of the model, split into thought, text and calls as a template receives them."""

    text: str
    """Full text of the turn as sampled, with tags and calls; empty for turns that were not sampled."""
    thought: str
    """Thought without its tags; empty if there is none."""
    content: str
    """Text after the thought, without calls that the template writes itself."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the turn, with the ids that the template receives."""


Spoken = tuple[dict[str, Any] | TurnParts, ...]
"""Conversation: untrusted messages as the template receives them, and turns of the model."""


@dataclass(frozen=True, slots=True)
class TurnBlock:
    """Turn of the model in a segment, with the messages after it."""

    number: int
    """Index of the turn in the segment."""
    entries: Spoken
    """The turn and the messages."""
    kind: tuple[Hashable, ...] = ()
    """Properties on which a template can decide: parts and end of the turn, roles of the messages."""

    @property
    def turn(self) -> TurnParts:
        """The turn of the model."""
        assert isinstance(self.entries[0], TurnParts)
        return self.entries[0]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Properties of a chat template that determine in which form it receives a conversation.

    `probe_template` detects them.
    """

    shows_tools: bool = False
    """Whether the template renders tools; otherwise the tool-call format describes them in the system message."""
    writes_calls: bool = False
    """Whether the template writes calls in the tool-call format; otherwise calls are part of the model's text."""
    shows_answers: bool = False
    """Whether the template renders messages of role `tool`; otherwise the tool-call format presents results."""
    objects: bool = True
    """Whether the template receives arguments of calls as objects; otherwise as JSON text."""
    silence: str | None = ""
    """Content of a turn that has only calls: the empty string or None."""
    call_id: str = "call{index:05d}"
    """Pattern of call ids, with the fields `{index}` and `{name}`."""
    takes_ids: bool = True
    """Whether the template accepts any id that the model wrote; otherwise only ids of nine letters or digits."""
    several: bool = True
    """Whether the template renders several calls in one turn."""
    speaks_and_calls: bool = True
    """Whether the template renders text and calls in one turn."""
    thought_key: str = ""
    """Message key under which the template reads the thought; empty if the thought is in the content, between tags."""
    thought_signs: tuple[str, str] = _TAGS
    """(opening, closing) tags of a thought, without line breaks."""
    thought_frame: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    """(before, after) text around a thought, including tags and line breaks."""
    said_sign: str = ""
    """Tag that the model writes before its text; empty for most templates."""
    parts: bool = False
    """Whether the template receives contents as lists of parts, as templates of multimodal models do."""
    no_tools: tuple[()] | None = None
    """Value of `tools` if there are none: None or an empty tuple."""

    def convert_turn(self, speech: TurnParts) -> dict[str, Any]:
        """Convert a turn of the model into the message that the template receives."""
        content, calls = speech.content, speech.calls if self.several else speech.calls[:1]
        if calls and not self.speaks_and_calls:
            content = ""
        if speech.thought and not self.thought_key:
            opening, closing = self.thought_frame
            content = f"{opening}{speech.thought}{closing}{content}"
        message: dict[str, Any] = {"role": "assistant", "content": content or (self.silence if calls else "")}
        if speech.thought and self.thought_key:
            message[self.thought_key] = speech.thought
        if calls and self.writes_calls:
            message["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": self._arguments(call)}}
                for call in calls
            ]
        return message

    def id_of(self, call: ToolCall, index: int) -> str:
        """Return the id of a call as the template receives it.

        Args:
            call: Call, with the id that the model wrote, or an empty id.
            index: Number of calls before this call in the conversation.
        """
        if call.id and (self.takes_ids or re.fullmatch("[A-Za-z0-9]{9}", call.id)):
            return call.id
        return self.call_id.format(index=index, name=call.name)

    def _arguments(self, call: ToolCall) -> Any:
        if not self.objects:
            return call.arguments
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {"arguments": call.arguments}


class Prober:
    """Renderer of probe conversations for one template.

    It caches the results, which all tool-call formats share.

    The constructor also finds out whether the template needs contents as lists of parts, and `[]` instead of None for
    no tools.

    Args:
        render: Renderer of the template, see `template_renderer`.
    """

    def __init__(self, render: Shown) -> None:
        self._shown = render
        self._seen: dict[str, str | None] = {}
        self.parts, self.no_tools = False, None
        question = [_user()]
        if ASKED not in (self.render(question, False, True) or ""):
            for self.parts, self.no_tools in ((True, None), (False, ()), (True, ())):
                if ASKED in (self.render(question, False, True) or ""):
                    break
            else:
                self.parts, self.no_tools = False, None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: bool, add_generation_prompt: bool) -> str | None:
        """Return the rendered messages; None if the template rejects them.

        Args:
            messages: Messages in the OpenAI format.
            tools: Whether to offer the probe tool.
            add_generation_prompt: Whether to add the generation prompt.

        Raises:
            PolicyError: If the template exceeds its limit of time or memory.
        """
        passed_tools = [TOOL.to_openai()] if tools else self.no_tools
        read = in_parts(messages) if self.parts else messages
        key = json.dumps([read, passed_tools, add_generation_prompt])
        if key not in self._seen:
            try:
                self._seen[key] = self._shown(read, passed_tools, add_generation_prompt)
            except PolicyError as error:
                if "it takes longer" in str(error) or "it makes" in str(error):
                    raise  # other inputs would take as long
                self._seen[key] = None
        return self._seen[key]

    def render_turn(self, message: Mapping[str, Any], tools: bool) -> str:
        """Return the rendered text of a model's turn without its header.

        This also works if the template rewrites the messages before the turn: the shared prefix is then cut at a tag.

        Args:
            message: Assistant message after a user message.
            tools: Whether to offer the probe tool.
        """
        prompted, unprompted, rendered = (
            self.render(messages, tools, prompt) or ""
            for messages, prompt in (([_user()], True), ([_user()], False), ([_user(), message], False))
        )
        if rendered.startswith(prompted):
            return rendered[len(prompted) :]
        shared = common_prefix(rendered, prompted)
        cut = max(shared.rfind(sign) for sign in (">", "\n", "]")) + 1  # not within a tag
        return rendered[max(cut, len(unprompted) if rendered.startswith(unprompted) else 0) :]


def in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose text contents are lists with one text part."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else dict(message)
        for message in messages
    ]


def probe_template(prober: Prober, format: ToolCallFormat, vocabulary: Container[str]) -> Dialect:
    """Detect the properties of a chat template for a model that calls tools in a format.

    Args:
        prober: Renderer of probe conversations.
        format: Tool-call format of the model.
        vocabulary: Texts that are single tokens of the tokenizer.
    """
    base = Dialect(parts=prober.parts, no_tools=prober.no_tools)
    dialect = _detect_calls(prober, format, base)
    if dialect is None:
        # it may still render the tools and their results, with calls as the model's text
        answered = prober.render([_user(), _assistant(SAID), _answer(base)], True, True) or ""
        if mentions_format(prober, format, vocabulary):
            dialect = replace(base, shows_tools=True, shows_answers=ANSWERED in answered)
    learned_dialect = _detect_thoughts(prober, dialect or base)
    if not learned_dialect.thought_key:
        for signs in _OTHER_TAGS:
            if all(sign in vocabulary for sign in signs):
                learned_dialect = replace(learned_dialect, thought_signs=signs, thought_frame=signs)
    return _detect_text_tag(prober, learned_dialect)


def parse_mismatch(prober: Prober, format: ToolCallFormat) -> int | None:
    """Return how badly a format fits the calls of a template: number of characters of a call that it reads as text.

    0 is a perfect fit. None means that the format reads no call.
    """
    dialect = _detect_calls(prober, format, Dialect(parts=prober.parts, no_tools=prober.no_tools))
    if dialect is None:
        return None
    turn = prober.render_turn(dialect.convert_turn(_speech(dialect, 1)), dialect.shows_tools)
    return len(format.read(turn, (TOOL,)).text)


def reads_escapes(prober: Prober, format: ToolCallFormat) -> bool:
    """Return whether the format reads a backslash in a rendered call correctly.

    Some formats differ only in this.
    """
    dialect = _detect_calls(prober, format, Dialect(parts=prober.parts, no_tools=prober.no_tools))
    if dialect is None:
        return False
    arguments = {**_ARGUMENTS, "text": f"{CALLED} \\n"}
    call = ToolCall(TOOL.name, json.dumps(arguments), dialect.id_of(ToolCall(TOOL.name, ""), 0))
    turn = prober.render_turn(dialect.convert_turn(TurnParts("", "", "", (call,))), dialect.shows_tools)
    return [_object(one.arguments) for one in format.read(turn, (TOOL,)).tool_calls] == [arguments]


def mentions_format(prober: Prober, format: ToolCallFormat, vocabulary: Container[str]) -> bool:
    """Return whether a template that renders tools, or the tokenizer, contains the first marker of a format.

    This is the evidence for formats whose calls the template does not write.
    """
    instructions = _instructions(prober)
    signs = [sign for sign in format.markers if len(sign) > 3]
    return bool(instructions) and bool(signs) and (signs[0] in instructions or signs[0] in vocabulary)


def _instructions(prober: Prober) -> str:
    """Return the rendered text of a user message with tools offered.

    The result is empty if the template does not render tools.
    """
    rendered = prober.render([_user()], True, True) or ""
    return rendered if TOOL.name in rendered else ""


def _detect_calls(prober: Prober, format: ToolCallFormat, base: Dialect) -> Dialect | None:
    """Return the message layout for which the template renders calls in the format, and their results.

    None if there is no such layout.
    """
    ways = product(
        (True, False) if _instructions(prober) else (False,),
        ("call{index:05d}", "functions.{name}:{index}"),
        (True, False),
        ("", None),
    )
    for tools, call_id, objects, silence in ways:
        dialect = replace(
            base,
            shows_tools=tools,
            objects=objects,
            silence=silence,
            call_id=call_id,
            writes_calls=True,
            shows_answers=True,
        )
        one = dialect.convert_turn(_speech(dialect, 1))
        if not _reads_back(prober, format, dialect, 1):
            continue
        if ANSWERED in (prober.render([_user(), one, _answer(dialect)], tools, True) or ""):
            odd = dialect.convert_turn(TurnParts("", "", "", (ToolCall(TOOL.name, json.dumps(_ARGUMENTS), "x-1"),)))
            takes_ids = prober.render([_user(), odd], tools, False) is not None
            return replace(dialect, several=_reads_back(prober, format, dialect, 2), takes_ids=takes_ids)
    return None


def _reads_back(prober: Prober, format: ToolCallFormat, dialect: Dialect, count: int) -> bool:
    """Return whether the format parses the calls that the template rendered back into the same calls."""
    turn = prober.render_turn(dialect.convert_turn(_speech(dialect, count)), dialect.shows_tools)
    if CALLED not in turn:
        return False
    ends = [match.start() for match in _END.finditer(turn, turn.rfind(CALLED))]
    for end in (len(turn), *reversed(ends)):  # without the tag that closes the turn
        message = format.read(turn[:end], (TOOL,))
        calls = message.tool_calls
        if (
            not message.malformed
            and [(call.name, _object(call.arguments)) for call in calls] == [(TOOL.name, _ARGUMENTS)] * count
        ):
            return True
    return False


def _detect_thoughts(prober: Prober, dialect: Dialect) -> Dialect:
    """Return the dialect with the message key of thoughts and the text that the template writes around them."""
    for key in (*_THOUGHT_KEYS, ""):
        tried = replace(dialect, thought_key=key)
        for calls, content in product((0, 1) if dialect.writes_calls else (0,), (SAID, "")):
            rendered = prober.render_turn(
                tried.convert_turn(_speech(tried, calls, THOUGHT, content)), dialect.shows_tools
            )
            after = rendered.partition(THOUGHT)[2]
            follow = [text for text in ((SAID,) if content else ()) + ((CALLED,) if calls else ()) if text in after]
            if THOUGHT not in rendered or (not follow and (content or calls)):
                continue
            if not key:
                return tried
            first = min(follow, key=after.index, default=SAID)
            opening, closing = frame = _find_thought_frame(prober, tried, rendered, first)
            if not closing.strip():
                return tried
            return replace(tried, thought_signs=(opening.strip(), closing.strip()), thought_frame=frame)
    return dialect


def _find_thought_frame(prober: Prober, dialect: Dialect, rendered: str, following: str) -> tuple[str, str]:
    """Return the text that the template writes before and after a thought, up to the text or call that follows it."""
    opening, _, after = rendered.partition(THOUGHT)
    if not opening.strip():  # the generation prompt starts the thought
        speech = dialect.convert_turn(
            _speech(dialect, int(following == CALLED), THOUGHT, SAID if following == SAID else "")
        )
        header = (prober.render([_user(), speech], dialect.shows_tools, False) or "").partition(THOUGHT)[0]
        opening = header[max(header.rfind("<"), header.rfind("[")) :]
    closing = after.partition(following)[0]
    if following == SAID and dialect.writes_calls:  # only the part before both text and calls belongs to the thought
        called = prober.render_turn(dialect.convert_turn(_speech(dialect, 1, THOUGHT)), dialect.shows_tools).partition(
            THOUGHT
        )[2]
        shared = common_prefix(closing, called)
        closing = re.sub(r"\s\w+=\Z", "", shared) if shared.strip() else closing
    elif following == CALLED:
        sign = _FIRST_SIGN.match(closing)
        closing = sign[0] if sign is not None else ""
    if closing.count("<") > closing.count(">"):
        closing = closing[: closing.rfind("<")]
    return opening, closing


def _detect_text_tag(prober: Prober, dialect: Dialect) -> Dialect:
    """Return the dialect with the tag before text, and with whether a turn can have both text and calls."""
    before = prober.render_turn(_assistant(SAID), dialect.shows_tools).partition(SAID)[0]
    _, closed, sign = before.rpartition(dialect.thought_signs[1])
    sign = sign.strip() if closed else sign
    is_together = True
    if dialect.writes_calls:
        speech = _speech(dialect, 1, THOUGHT if dialect.thought_key else "", SAID)
        turn = prober.render_turn(dialect.convert_turn(speech), dialect.shows_tools)
        end = _FIRST_SIGN.match(prober.render_turn(_assistant(SAID), dialect.shows_tools).partition(SAID)[2])
        between = turn.partition(CALLED)[2].partition(SAID)[0] if turn.find(CALLED) < turn.find(SAID) else ""
        # text after a call that ends the turn is a second turn
        is_together = SAID in turn and CALLED in turn and not (end is not None and end[0].strip() in between)
    return replace(dialect, said_sign=sign, speaks_and_calls=is_together)


def _speech(dialect: Dialect, calls: int, thought: str = "", content: str = "") -> TurnParts:
    called = ToolCall(TOOL.name, json.dumps(_ARGUMENTS))
    named = tuple(replace(called, id=dialect.id_of(called, index)) for index in range(calls))
    return TurnParts("", thought, content, named)


def common_prefix(one: str, other: str) -> str:
    """Return the longest common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _user() -> dict[str, Any]:
    return {"role": "user", "content": ASKED}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _answer(dialect: Dialect) -> dict[str, Any]:
    call_id = dialect.call_id.format(index=0, name=TOOL.name)
    return {"role": "tool", "tool_call_id": call_id, "name": TOOL.name, "content": ANSWERED}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None
