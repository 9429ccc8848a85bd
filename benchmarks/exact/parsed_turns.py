# ruff: noqa: E501 - tables are lines
"""Parse turns that the chat templates of real models render: kinds of turns, and 50 kinds of argument values.

    python -m benchmarks parsed_turns            all templates; writes results/raw/parsed_turns.json and .md
    python -m benchmarks parsed_turns NAME…      prints the failing turns of these templates

Each turn is rendered by Transformers' `apply_chat_template`, tokenized, cut after the first stop token, and parsed. It
passes if thought, text and calls are those that were rendered. Per tool-call format the page also counts turns that the
format writes and parses back, turns that are cut within their calls and reported as malformed, and turns whose text is
the same if it is streamed token by token.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.chat import FORMATS, Chat, Message, ToolCall, ToolSpec, assistant, detect_tool_call_format, user
from whetstone.chat.api.requests import CompletionRequest
from whetstone.chat.template_probe import TurnParts, common_prefix, in_parts
from whetstone.errors import WhetstoneError
from whetstone.serving.detokenizer import StreamedText

sys.path.append(str(Path(__file__).parents[2] / "tests"))
_templates: Any = importlib.import_module("support.chat_templates")
RESULTS = Path(__file__).parents[1] / "results"

TEXT: Mapping[str, Any] = {"type": "string"}
NULLABLE: Mapping[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
VALUES: Sequence[tuple[str, Mapping[str, Any], Any]] = (
    *((f"string {text!r}"[:40], TEXT, text) for text in (
        "Oslo", "12345", "true", "null", "1e5", "3.10", "0x10", "[1, 2]", '{"a": 1}', '"exact phrase"', "'single'", "None",
        "NaN", "", " first", "last ", "a\nb", "a\n\n  b\n", "\ttab", "a < b & c > d", "<b>bold</b>", "]]>", "a, b)", "{{ x }}",
        "100 %s", "back\\slash \\n", "你好 Zürich 🪨", "`code`", "x = {'a': \"b\"}", "<tag attr=\"1\"/>", "a: b", "#", "=", "1 000",
        "print('''x''')\nif a < b:\n    pass",
    )),
    *((f"string or null {text!r}", NULLABLE, text) for text in ("Oslo", "12345", "true", '"quoted"')),
    ("string or null, null", NULLABLE, None),
    ("list of types", {"type": ["string", "null"]}, "42"),
    ("enum of strings", {"enum": ["1", "2"]}, "2"),
    ("reference", {"$ref": "#/$defs/Place"}, "7"),
    ("integer or string, integer", {"type": ["integer", "string"]}, 42),
    ("integer", {"type": "integer"}, -3),
    ("number", {"type": "number"}, 0.5),
    ("boolean", {"type": "boolean"}, True),
    ("list", {"type": "array", "items": {"type": "string"}}, ["a", "b c", "3"]),
    ("object", {"type": "object", "additionalProperties": {"type": "string"}}, {"year": "2026", "b c": "x"}),
)  # fmt: skip
CONTRADICTIONS: Mapping[str, tuple[int, str, str]] = {
    "GigaChat3-10B-A1.8B": (187, "add_tokens.message_sep", "ends a turn of text and precedes the call of a turn that calls"),
    "NVIDIA-Nemotron-Nano-v2": (139, "<SPECIAL_12>", "ends a turn, and is written between thought or text and the call of one turn"),
    "upstage-Solar-Open-100B": (128, "<|end|>", "ends a thought here, and in line 146 a turn"),
}  # fmt: skip
"""Templates that write the token that ends a turn within a turn: line, text, and what contradicts."""
KINDS = tuple(
    f"{start}{kind}" for start in ("", "thought, ") for kind in ("text", "one call", "two calls", "text and call")
)
CALLED, SAID, THOUGHT = "Rome", "I look it up.", "First the weather."


def tool_with(schema: Mapping[str, Any]) -> ToolSpec:
    """Return a tool with a parameter of a schema."""
    properties = {
        "value": {**schema, "description": "A value."},
        "count": {"type": "integer", "description": "A number."},
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["value"],
        "$defs": {"Place": {"type": "string"}},
    }
    return ToolSpec("look_up", "Looks something up.", parameters)


@dataclass(frozen=True)
class Turn:
    """A turn to be rendered."""

    kind: str
    tool: ToolSpec
    thought: str = ""
    content: str = ""
    arguments: tuple[Mapping[str, Any], ...] = ()


def turns() -> Iterator[Turn]:
    """Yield all kinds of turns."""
    tool = tool_with(TEXT)
    one, two = ({"value": CALLED},), ({"value": CALLED}, {"value": "Bern", "count": 2})
    for thought in ("", THOUGHT):
        prefix = "thought, " if thought else ""
        yield Turn(f"{prefix}text", tool, thought, SAID)
        yield Turn(f"{prefix}one call", tool, thought, "", one)
        yield Turn(f"{prefix}two calls", tool, thought, "", two)
        yield Turn(f"{prefix}text and call", tool, thought, SAID, one)
        yield Turn(f"{prefix}text and two calls", tool, thought, SAID, two)
    for kind, schema, value in VALUES:
        yield Turn(kind, tool_with(schema), arguments=({"value": value},))


@dataclass
class Result:
    """Counts of one template."""

    name: str
    format: str = ""
    rendered: int = 0
    parsed: int = 0
    written: int = 0
    cut: int = 0
    reported: int = 0
    streamed: int = 0
    streams: int = 0
    refused: str = ""
    failures: dict[str, str] = field(default_factory=dict)
    """Kind of turn → difference of the result."""


def measure(name: str, template: str) -> Result:
    """Render and parse all turns of one template."""
    result = Result(name)
    try:
        tokenizer = _templates.real_tokenizer(name, template)
        result.format = detect_tool_call_format(tokenizer)
        chat = Chat(tokenizer, FORMATS[result.format]())
    except WhetstoneError as error:
        result.refused = str(error)
        return result
    for turn in turns():
        text = render(chat, turn)
        if text is None:
            continue
        result.rendered += 1
        message, ids = parse(chat, text, turn)
        wrong = difference(chat, message, turn)
        if wrong:
            result.failures[turn.kind] = f"{wrong} | {text[:300]!r}"
        else:
            result.parsed += 1
            if turn.arguments:
                cut, reported = cut_turns(chat, ids, turn)
                result.cut += cut
                result.reported += reported
        if turn.kind in KINDS:
            result.streams += 1
            result.streamed += is_streamed(chat, ids, turn)
        result.written += is_written(chat, turn)
    return result


def speech_of(chat: Chat, turn: Turn) -> TurnParts:
    """Return the turn in the form in which the template of a chat receives it."""
    calls = tuple(ToolCall(turn.tool.name, json.dumps(each)) for each in turn.arguments)
    named = tuple(ToolCall(call.name, call.arguments, chat.dialect.id_of(call, i)) for i, call in enumerate(calls))
    return TurnParts("", turn.thought, turn.content, named)


def render(chat: Chat, turn: Turn) -> str | None:
    """Render a turn with Transformers; None if the template cannot show it."""
    dialect = chat.dialect
    if turn.arguments and not dialect.writes_calls:
        return None
    if (len(turn.arguments) > 1 and not dialect.several) or (
        turn.content and turn.arguments and not dialect.speaks_and_calls
    ):
        return None
    message = dialect.convert_turn(speech_of(chat, turn))
    question = {"role": "user", "content": "How is it?"}
    tools: Any = [turn.tool.to_openai()] if dialect.shows_tools else dialect.no_tools

    def apply(messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        inputs: Any = in_parts(messages) if dialect.parts else list(messages)
        # a variable that Transformers does not pass; content that is null, which it removes
        if "functions" in chat.tokenizer.chat_template or dialect.silence is None:
            return str(chat._show(inputs, tools, prompt))
        return str(
            chat.tokenizer.apply_chat_template(inputs, tools=tools, add_generation_prompt=prompt, tokenize=False)
        )

    following: Any = {"role": "user", "content": "And then?"}
    if turn.arguments:
        ids = message.get("tool_calls", [{}])[0].get("id")
        following = {"role": "tool", "tool_call_id": ids, "name": turn.tool.name, "content": "sunny"}
    texts: dict[bool, str] = {}
    for is_followed in (False, True):
        try:
            opened, complete = (
                apply([question], True),
                apply([question, message, *([following] if is_followed else [])], False),
            )
        except Exception:
            continue
        start = len(opened)
        if not complete.startswith(opened):
            shared = common_prefix(complete, opened)
            start = max(shared.rfind(sign) for sign in (">", "\n", "]")) + 1
            if "How is it?" in complete[start:]:
                continue
        text = complete[start:]
        last = max(map(text.rfind, (turn.thought, turn.content)))
        called = text.find("value") if turn.arguments else last
        if not all(part in text for part in (turn.thought, turn.content)) or called < 0:
            continue
        if turn.thought and turn.arguments and text.find(turn.thought) > called:
            continue
        texts[is_followed] = text
    for text in texts.values():
        if any(stop in text for stop in chat._stops):
            return text
    return common_prefix(*texts.values()) if len(texts) == 2 else next(iter(texts.values()), None)


def parse(chat: Chat, text: str, turn: Turn) -> tuple[Message, tuple[int, ...]]:
    """Tokenize, cut after the first stop token, and parse."""
    ids = chat.encode(text)
    end = next((i + 1 for i, token in enumerate(ids) if token in chat.stop_ids), len(ids))
    return chat.read(ids[:end], [turn.tool], turn=0), ids[:end]


def difference(chat: Chat, message: Message, turn: Turn) -> str:
    """Return what differs from the turn; empty if nothing does."""
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    expected = [(turn.tool.name, dict(each)) for each in turn.arguments]
    start, closed, content = message.text.rpartition("</think>")
    thought = start.strip().removeprefix("<think>").strip() if closed else ""
    if message.malformed:
        return f"malformed: {message.malformed}"
    if json.dumps(calls, sort_keys=True) != json.dumps(expected, sort_keys=True):
        return f"calls {calls}"
    if content.strip() != turn.content.strip():
        return f"text {content!r}"
    return "" if thought == turn.thought else f"thought {thought!r}"


def is_written(chat: Chat, turn: Turn) -> bool:
    """Return whether the chat renders the turn as tokens and parses it back."""
    calls = tuple(ToolCall(turn.tool.name, json.dumps(each)) for each in turn.arguments)
    thought = f"<think>\n{turn.thought}\n</think>\n\n" if turn.thought else ""
    try:
        ids = chat.write(assistant(thought + turn.content, *calls), [turn.tool])
    except (ValueError, WhetstoneError):
        return False
    return not difference(chat, chat.read(ids, [turn.tool], turn=0), turn)


def is_streamed(chat: Chat, ids: Sequence[int], turn: Turn) -> bool:
    """Return whether the streamed text is a prefix of the content at every token and contains no marker."""
    pieces: list[str] = []
    prompt = chat.open([user("How is it?")], [turn.tool]).rendered[-1]
    name = turn.tool.name
    try:
        written = chat.tokenizer.decode(chat.write(assistant("", ToolCall(name, "{}")), [turn.tool]))
    except ValueError:
        written = ""
    request = CompletionRequest(messages=(), tools=(turn.tool,))
    start = written.partition(name)[0].strip() or None
    stream = StreamedText(chat, request, pieces.append, hidden=chat._begins_thought(prompt), calls=start)
    ids = ids[:-1] if ids and ids[-1] in chat.stop_ids else ids
    for count in range(1, len(ids) + 1):
        stream.on_tokens(ids[:count])
    text = "".join(pieces)
    content = chat.read(ids, [turn.tool], turn=0).text
    return content.strip().startswith(text.strip()) and not any(marker in text for marker in chat.format.markers)


def cut_turns(chat: Chat, ids: Sequence[int], turn: Turn) -> tuple[int, int]:
    """Cut a turn at several places within its calls; returns (cuts, cuts that are malformed or lack a later call only)."""
    complete = chat.read(ids, [turn.tool], turn=0).tool_calls
    cuts = reported = 0
    for tenth in range(1, 10):
        message = chat.read(ids[: len(ids) * tenth // 10], [turn.tool], turn=0)
        text = chat.tokenizer.decode(ids[: len(ids) * tenth // 10])
        text = text.rpartition(turn.thought)[2] if turn.thought else text
        if turn.thought and turn.thought not in chat.tokenizer.decode(ids[: len(ids) * tenth // 10]):
            continue
        if not any(marker in text for marker in getattr(chat.format, "reserved", ()) or chat.format.markers):
            continue
        cuts += 1
        reported += bool(message.malformed) or message.tool_calls == complete[: len(message.tool_calls)] != ()
    return cuts, reported


def page(results: Sequence[Result], where: Mapping[str, Any]) -> str:
    """Return the page."""
    rendered, parsed = sum(one.rendered for one in results), sum(one.parsed for one in results)
    lines = [
        "# Turns parsed back",
        "",
        f"`python -m benchmarks parsed_turns`: {parsed} of {rendered} turns that {len(results)} templates render are parsed as they were "
        f"rendered; {len(VALUES)} kinds of values and 10 kinds of turns, as far as a template can show them.",
        "",
        "## By format",
        "",
        "| format | templates | parsed | written | streamed | cut turns reported |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in sorted({one.format for one in results if one.format}):
        own = [one for one in results if one.format == name]
        total = sum(1 for _ in turns()) * len(own)
        lines.append(
            f"| `{name}` | {len(own)} | {sum(o.parsed for o in own)}/{sum(o.rendered for o in own)} | {sum(o.written for o in own)}/{total} "
            f"| {sum(o.streamed for o in own)}/{sum(o.streams for o in own)} | {sum(o.reported for o in own)}/{sum(o.cut for o in own)} |"
        )
    lines += ["", "## Turns that differ", ""]
    for one in results:
        if one.failures and one.name in CONTRADICTIONS:
            line, text, reason = CONTRADICTIONS[one.name]
            lines.append(
                f"- {one.name} ({one.format}), {len(one.failures)} turns: line {line} of its template, `{text}`, {reason}."
            )
            continue
        lines += [f"- {one.name} ({one.format}): {kind}: {wrong[:300]}" for kind, wrong in one.failures.items()]
        lines += [f"- {one.name}: {one.refused}"] if one.refused else []
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure the templates; 1 if a turn differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; without: all, and the results are written")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    began = time.perf_counter()
    templates = {**_templates.real_templates(), **_templates.axolotl_templates()}
    chosen = {n: t for n, t in templates.items() if not arguments.names or any(part in n for part in arguments.names)}
    results = [measure(name, template) for name, template in chosen.items()]
    rendered, parsed = sum(one.rendered for one in results), sum(one.parsed for one in results)
    if arguments.names:
        for one in results:
            print(
                f"{one.name} {one.format} {one.parsed}/{one.rendered} written {one.written} cut {one.reported}/{one.cut} {one.refused}"
            )
            for kind, wrong in list(one.failures.items())[:4]:
                print("   ", kind, "→", wrong[:400])
        return 0
    measured = {
        "parsed": parsed,
        "rendered": rendered,
        "templates": {one.name: {k: v for k, v in vars(one).items() if k != "name"} for one in results},
    }
    stored = {
        "name": "parsed_turns",
        "measured": measured,
        "ratios": {},
        "goal": "all turns are parsed as rendered",
        **circumstances(began),
    }
    text = page(results, stored)
    if arguments.json:
        print(json.dumps(stored, indent=1, ensure_ascii=False))
    else:
        (RESULTS / "raw" / "parsed_turns.json").write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
        (RESULTS / "parsed_turns.md").write_text(text)
        print(text)
    return int(any(one.failures and one.name not in CONTRADICTIONS for one in results))


if __name__ == "__main__":
    sys.exit(main())
