"""What does a model's own template do with tools, calls, their answers, and thinking? Rendered, and seen.

No name of a model is read. Short conversations are rendered that hold texts found nowhere else; what of them is shown,
where, and between which signs, says how a conversation must be given to this template. Whether its calls are in a
tool-call format is whether that format reads back what the template wrote.

Easy to get wrong: a template that takes something without a word and shows nothing of it. Only what is seen counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from whetstone.chat.message import ToolCall, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.errors import PolicyError

ASKED, SAID, THOUGHT, CALLED, ANSWERED = (f"qz{word}zq" for word in ("ask", "say", "think", "call", "answer"))
"""Texts to look for: plain letters, which no template trims, escapes or breaks."""
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
"""On offer in a conversation that is rendered to see what is shown."""
_ARGUMENTS: dict[str, Any] = {"text": f"{CALLED} b", "count": 3}
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "thoughts")
_TAGS = ("<think>", "</think>")
_OTHER_TAGS = (("[THINK]", "[/THINK]"), ("<|inner_prefix|>", "<|inner_suffix|>"))
"""Signs around thoughts that are tokens of a model, and that its template writes only for content given as parts."""
_END = re.compile(r"\s*(?:<|\[|\Z)")
_FIRST_SIGN = re.compile(r"\s*(?:<[^<>]*>|\[/?\w+\])")

Shown = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]
"""(messages, tools, whether the model is asked) → what the template shows; raises where it refuses."""


class Rewritten(Exception):
    """The template does not show what is in view as it showed it; the text says what of it."""


@dataclass(frozen=True, slots=True)
class Speech:
    """What the model said in one turn, taken apart."""

    text: str
    """All of it, as it was sampled."""
    thought: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    """With the ids the template is given."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one template is spoken to."""

    shows_tools: bool = False
    """It shows tools it is given; else they are told of in the system message."""
    writes_calls: bool = False
    """It writes calls in the tool-call format; else they are text the model said."""
    shows_answers: bool = False
    """It shows messages of the role `tool`; else answers are shown as the format shows them."""
    objects: bool = True
    """Arguments are given to it as objects; else as texts of JSON."""
    silence: str | None = ""
    """The content of a turn that only calls."""
    call_id: str = "call{index:05d}"
    """What ids of calls look like."""
    takes_ids: bool = True
    """An id the model wrote is taken as it is."""
    several: bool = True
    """A turn may call more than once."""
    speaks_and_calls: bool = True
    """A turn may say something and call."""
    thought_key: str = ""
    """Where a thought is given to it; empty: in the content, between tags."""
    thought_signs: tuple[str, str] = _TAGS
    """What tells a thought from what is said."""
    thought_frame: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    """What stands around a thought, line breaks included."""
    said_sign: str = ""
    """What the model writes in front of what it says."""
    parts: bool = False
    """Contents are given to it as lists of parts, which templates of models that see want."""
    no_tools: tuple[()] | None = None
    """What it is given where there are none."""

    def speech(self, speech: Speech) -> dict[str, Any]:
        """A turn of the model as a message."""
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
        """The id of a call, the `index`-th of the conversation."""
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
    """Renders each conversation once, for whichever format is tried."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._seen: dict[str, str | None] = {}
        self.parts, self.no_tools = False, None
        asked = [_user()]
        if ASKED not in (self.show(asked, False, True) or ""):
            for self.parts, self.no_tools in ((True, None), (False, ()), (True, ())):
                if ASKED in (self.show(asked, False, True) or ""):
                    break
            else:
                self.parts, self.no_tools = False, None

    def show(self, messages: Sequence[Mapping[str, Any]], tools: bool, asked: bool) -> str | None:
        """What is shown; None where the template refuses."""
        given = [TOOL.to_openai()] if tools else self.no_tools
        read = in_parts(messages) if self.parts else messages
        key = json.dumps([read, given, asked])
        if key not in self._seen:
            try:
                self._seen[key] = self._shown(read, given, asked)
            except PolicyError as error:
                if "it takes longer" in str(error) or "it makes" in str(error):
                    raise  # asked otherwise it would take as long again
                self._seen[key] = None
        return self._seen[key]

    def turn(self, message: Mapping[str, Any], tools: bool) -> str:
        """What it writes for a turn of the model, without the header of it, though the two may not fit in all."""
        asked, unasked, told = (
            self.show(messages, tools, prompt) or ""
            for messages, prompt in (([_user()], True), ([_user()], False), ([_user(), message], False))
        )
        if told.startswith(asked):
            return told[len(asked) :]
        shared = shared_beginning(told, asked)
        cut = max(shared.rfind(sign) for sign in (">", "\n", "]")) + 1  # not in the middle of a sign
        return told[max(cut, len(unasked) if told.startswith(unasked) else 0) :]


def in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, their texts as lists of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else dict(message)
        for message in messages
    ]


def learned(prober: Prober, format: ToolCallFormat, vocabulary: Container[str]) -> Dialect:
    """How a template is to be spoken to, by a model that calls tools in this format.

    Args:
        vocabulary: Texts that are tokens of their own.
    """
    base = Dialect(parts=prober.parts, no_tools=prober.no_tools)
    dialect = _calls(prober, format, base)
    if dialect is None:
        # it may still show the tools, and what they answer, with calls as the model's text
        answered = prober.show([_user(), _said(SAID), _answer(base)], True, True) or ""
        if hints(prober, format, vocabulary):
            dialect = replace(base, shows_tools=True, shows_answers=ANSWERED in answered)
    learned_dialect = _thoughts(prober, dialect or base)
    if not learned_dialect.thought_key:
        for signs in _OTHER_TAGS:
            if all(sign in vocabulary for sign in signs):
                learned_dialect = replace(learned_dialect, thought_signs=signs, thought_frame=signs)
    return _framed(prober, learned_dialect)


def misread(prober: Prober, format: ToolCallFormat) -> int | None:
    """How many characters of a call the template writes this format takes for something said; None: it reads none."""
    dialect = _calls(prober, format, Dialect(parts=prober.parts, no_tools=prober.no_tools))
    if dialect is None:
        return None
    turn = prober.turn(dialect.speech(_speech(dialect, 1)), dialect.shows_tools)
    return len(format.read(turn, (TOOL,)).text)


def reads_escapes(prober: Prober, format: ToolCallFormat) -> bool:
    """Whether the format reads a backslash in a call as the template writes it; formats differ in escapes only."""
    dialect = _calls(prober, format, Dialect(parts=prober.parts, no_tools=prober.no_tools))
    if dialect is None:
        return False
    arguments = {**_ARGUMENTS, "text": f"{CALLED} \\n"}
    call = ToolCall(TOOL.name, json.dumps(arguments), dialect.id_of(ToolCall(TOOL.name, ""), 0))
    turn = prober.turn(dialect.speech(Speech("", "", "", (call,))), dialect.shows_tools)
    return [_object(one.arguments) for one in format.read(turn, (TOOL,)).tool_calls] == [arguments]


def hints(prober: Prober, format: ToolCallFormat, vocabulary: Container[str]) -> bool:
    """Whether a template that shows tools and writes no calls speaks of this format's signs, or the tokenizer does."""
    shown = _instructions(prober)
    signs = [sign for sign in format.markers if len(sign) > 3]
    return bool(shown) and bool(signs) and (signs[0] in shown or signs[0] in vocabulary)


def _instructions(prober: Prober) -> str:
    """What it shows of tools; empty where it shows none."""
    shown = prober.show([_user()], True, True) or ""
    return shown if TOOL.name in shown else ""


def _calls(prober: Prober, format: ToolCallFormat, base: Dialect) -> Dialect | None:
    """How calls are given to it so that it writes them in the format and shows what the tools answer; None: not."""
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
        one = dialect.speech(_speech(dialect, 1))
        if not _reads(prober, format, dialect, 1):
            continue
        if ANSWERED in (prober.show([_user(), one, _answer(dialect)], tools, True) or ""):
            odd = dialect.speech(Speech("", "", "", (ToolCall(TOOL.name, json.dumps(_ARGUMENTS), "x-1"),)))
            takes_ids = prober.show([_user(), odd], tools, False) is not None
            return replace(dialect, several=_reads(prober, format, dialect, 2), takes_ids=takes_ids)
    return None


def _reads(prober: Prober, format: ToolCallFormat, dialect: Dialect, count: int) -> bool:
    """Whether the format reads the calls in what the template wrote, and they are those it was given."""
    turn = prober.turn(dialect.speech(_speech(dialect, count)), dialect.shows_tools)
    if CALLED not in turn:
        return False
    ends = [match.start() for match in _END.finditer(turn, turn.rfind(CALLED))]
    for end in (len(turn), *reversed(ends)):  # without the sign that closes the turn
        message = format.read(turn[:end], (TOOL,))
        calls = message.tool_calls
        if (
            not message.malformed
            and [(call.name, _object(call.arguments)) for call in calls] == [(TOOL.name, _ARGUMENTS)] * count
        ):
            return True
    return False


def _thoughts(prober: Prober, dialect: Dialect) -> Dialect:
    """Where a thought is given to it, and what it writes around it."""
    for key in (*_THOUGHT_KEYS, ""):
        tried = replace(dialect, thought_key=key)
        for calls, content in product((0, 1) if dialect.writes_calls else (0,), (SAID, "")):
            told = prober.turn(tried.speech(_speech(tried, calls, THOUGHT, content)), dialect.shows_tools)
            behind = told.partition(THOUGHT)[2]
            follow = [text for text in ((SAID,) if content else ()) + ((CALLED,) if calls else ()) if text in behind]
            if THOUGHT not in told or (not follow and (content or calls)):
                continue
            if not key:
                return tried
            first = min(follow, key=behind.index, default=SAID)
            opening, closing = frame = _frame(prober, tried, told, first)
            if not closing.strip():
                return tried
            return replace(tried, thought_signs=(opening.strip(), closing.strip()), thought_frame=frame)
    return dialect


def _frame(prober: Prober, dialect: Dialect, told: str, following: str) -> tuple[str, str]:
    """What it writes around a thought, of a turn in which this follows."""
    opening, _, behind = told.partition(THOUGHT)
    if not opening.strip():  # the generation prompt begins the thought
        speech = dialect.speech(_speech(dialect, int(following == CALLED), THOUGHT, SAID if following == SAID else ""))
        header = (prober.show([_user(), speech], dialect.shows_tools, False) or "").partition(THOUGHT)[0]
        opening = header[max(header.rfind("<"), header.rfind("[")) :]
    closing = behind.partition(following)[0]
    if following == SAID and dialect.writes_calls:  # what follows is not its own: it is what calls and answers share
        called = prober.turn(dialect.speech(_speech(dialect, 1, THOUGHT)), dialect.shows_tools).partition(THOUGHT)[2]
        shared = shared_beginning(closing, called)
        closing = re.sub(r"\s\w+=\Z", "", shared) if shared.strip() else closing
    elif following == CALLED:
        sign = _FIRST_SIGN.match(closing)
        closing = sign[0] if sign is not None else ""
    if closing.count("<") > closing.count(">"):
        closing = closing[: closing.rfind("<")]
    return opening, closing


def _framed(prober: Prober, dialect: Dialect) -> Dialect:
    """What stands in front of what is said, and whether that goes with a call."""
    before = prober.turn(_said(SAID), dialect.shows_tools).partition(SAID)[0]
    _, closed, sign = before.rpartition(dialect.thought_signs[1])
    sign = sign.strip() if closed else sign
    is_together = True
    if dialect.writes_calls:
        speech = _speech(dialect, 1, THOUGHT if dialect.thought_key else "", SAID)
        turn = prober.turn(dialect.speech(speech), dialect.shows_tools)
        end = _FIRST_SIGN.match(prober.turn(_said(SAID), dialect.shows_tools).partition(SAID)[2])
        between = turn.partition(CALLED)[2].partition(SAID)[0] if turn.find(CALLED) < turn.find(SAID) else ""
        # text after a call that ends the turn is a second turn
        is_together = SAID in turn and CALLED in turn and not (end is not None and end[0].strip() in between)
    return replace(dialect, said_sign=sign, speaks_and_calls=is_together)


def _speech(dialect: Dialect, calls: int, thought: str = "", content: str = "") -> Speech:
    called = ToolCall(TOOL.name, json.dumps(_ARGUMENTS))
    named = tuple(replace(called, id=dialect.id_of(called, index)) for index in range(calls))
    return Speech("", thought, content, named)


def shared_beginning(one: str, other: str) -> str:
    """What two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _user() -> dict[str, Any]:
    return {"role": "user", "content": ASKED}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _answer(dialect: Dialect) -> dict[str, Any]:
    call_id = dialect.call_id.format(index=0, name=TOOL.name)
    return {"role": "tool", "tool_call_id": call_id, "name": TOOL.name, "content": ANSWERED}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None
