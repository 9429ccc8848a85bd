# ruff: noqa: E501 - tables are lines
"""Support of the chat templates of real models: tools, calls, results and reasoning.

    python -m benchmarks templates            writes results/raw/templates.json and results/templates.md
    python -m benchmarks templates NAME…      only these, in full

A template *works* if rendered calls are parsed back unchanged, and if the context over four turns equals the rendering
of the full conversation by Transformers' `apply_chat_template`: identical text except for the model's own turns, which
are as sampled and have the same text, reasoning and calls.

Note:
    Two renderings may be wrong in the same way. The context consists of sampled ids and later additions; the reference
    is a single rendering by another library.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whetstone.chat import (
    FORMATS,
    Chat,
    Context,
    Message,
    ToolCall,
    ToolSpec,
    assistant,
    detect_tool_call_format,
    tool_result,
    user,
)
from whetstone.chat.template_probe import TurnParts, in_parts
from whetstone.errors import WhetstoneError

sys.path.append(str(Path(__file__).parents[2] / "tests"))
_built: Any = importlib.import_module("support.chat_templates")
RESULTS = Path(__file__).parents[1] / "results"
GOAL = 66
"""Required number of working templates among the seventy in llama.cpp's tests."""

WEATHER = ToolSpec(
    "get_weather",
    "What the weather is like.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many."},
        },
        "required": ["city"],
    },
)
NOTE = ToolSpec(
    "keep_note",
    "Keeps a note.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to keep."},
            "about": {"type": "object", "description": "Whatever.", "additionalProperties": {"type": "string"}},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Words."},
        },
        "required": ["text"],
    },
)
TOOLS = (WEATHER, NOTE)
ARGUMENTS: Mapping[str, tuple[ToolSpec, Mapping[str, Any]]] = {
    "plain": (WEATHER, {"city": "Oslo", "days": 2}),
    "quotes": (NOTE, {"text": 'he said "no", \'yes\' and \\ {"a": [1]}'}),
    "newlines": (NOTE, {"text": "one\n\ntwo\n  three"}),
    "unicode": (NOTE, {"text": "Zürich 東京 🪨 ﬁ"}),
    "nested": (NOTE, {"text": "x", "about": {"deep": {"er": ["a", 1.5, True]}, "none": "here"}, "tags": ["a", "b c"]}),
    "a text that reads like a number": (NOTE, {"text": "42"}),
}


@dataclass
class TemplateResult:
    """Result of one template."""

    name: str
    format: str = ""
    shows_tools: bool = False
    writes_calls: bool = False
    """Whether the template renders calls in the format."""
    calls: dict[str, bool] = field(default_factory=dict)
    """Kind of arguments → whether a call was parsed back unchanged."""
    two_calls: bool = False
    exact: bool = False
    exact_with_thoughts: bool = False
    to_the_letter: bool = True
    """Whether the model's own turns also have the text that the template renders."""
    segments: int = 0
    """Number of segments of a four-turn conversation; 1 if the template keeps all turns."""
    segments_with_thoughts: int = 0
    refused: str = ""
    seconds: float = 0.0
    differs: list[str] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Return whether an agent can be trained with the template."""
        return not self.refused and all(self.calls.values()) and self.exact and self.exact_with_thoughts

    @property
    def verdict(self) -> str:
        """Return the verdict in a word or a line."""
        wrong = [name for name, right in self.calls.items() if not right]
        if self.refused:
            return f"refused: {self.refused}"
        if wrong:
            return f"a call is not read as it was written: {', '.join(wrong)}"
        return "works" if self.works else "the history is not exact"


def examine_template(name: str, template: str) -> TemplateResult:
    """Examine one template."""
    result, begun = TemplateResult(name), time.perf_counter()
    try:
        tokenizer = _built.real_tokenizer(name, template)
        result.format = detect_tool_call_format(tokenizer)
        chat = Chat(tokenizer, FORMATS[result.format]())
        result.shows_tools, result.writes_calls = chat.dialect.shows_tools, chat.dialect.writes_calls
        result.calls = {kind: _same(chat, [(tool, arguments)]) for kind, (tool, arguments) in ARGUMENTS.items()}
        result.two_calls = _same(chat, [(WEATHER, {"city": "Oslo"}), (WEATHER, {"city": "Rome", "days": 3})])
        result.exact, result.segments = _conversation(chat, result, thought="")
        result.exact_with_thoughts, result.segments_with_thoughts = _conversation(chat, result, thought="hm, so:\nwell")
    except WhetstoneError as error:
        result.refused = str(error).partition(": ")[2] or str(error)
    result.seconds = time.perf_counter() - begun
    return result


def _same(chat: Chat, calls: Sequence[tuple[ToolSpec, Mapping[str, Any]]]) -> bool:
    """Return whether rendered calls are parsed back without further content."""
    message = assistant("", *(ToolCall(tool.name, json.dumps(arguments)) for tool, arguments in calls))
    try:
        read = chat.read(chat.write(message, TOOLS), TOOLS, turn=0)
    except ValueError:  # the format cannot represent it
        return False
    return [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [
        (tool.name, arguments) for tool, arguments in calls
    ]


def _conversation(chat: Chat, result: TemplateResult, *, thought: str) -> tuple[bool, int]:
    """Return (whether the context always equaled the full rendering, number of segments)."""
    thought_text = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    rain = ToolCall("get_weather", '{"city": "Oslo", "days": 2}')
    both = (rain, ToolCall("get_weather", '{"city": "Rome"}')) if result.two_calls and chat.dialect.several else (rain,)
    turns: list[tuple[Message, list[Message]]] = [
        (assistant(thought_text, rain), [tool_result("rain, 4 °C", call_id="call_0_0")]),
        (assistant(thought_text, *both), [tool_result(f"sun {i}", call_id=f"call_1_{i}") for i in range(len(both))]),
        (assistant(f"{thought_text}Rain in Oslo."), [user("And tomorrow?")]),
        (assistant(f"{thought_text}Who knows."), [user("Thanks.")]),
    ]
    context, segments, exact = chat.open([user("How is it in Oslo?")], TOOLS), 1, True
    exact &= _at_once(chat, context, result, "opened")
    for number, (action, answers) in enumerate(turns):
        sampled = chat.write(action, TOOLS)
        following = chat.extend(context, sampled, answers)
        segments += following.opens_segment
        if not following.opens_segment:
            exact &= following.ids == (*context.ids, *sampled, *following.new.ids)
        exact &= _at_once(chat, following, result, f"turn {number + 1}{', with thoughts' if thought else ''}")
        context = following
    return exact, segments


def _at_once(chat: Chat, context: Context, result: TemplateResult, where: str) -> bool:
    """Return whether the context equals the full rendering by Transformers."""
    earlier = context.opened  # earlier turns of the model are rendered without forged tokens
    spoken = [
        chat._break_turn(m, context.tools) if isinstance(m, TurnParts) and i < earlier else m
        for i, m in enumerate(context.spoken)
    ]
    messages = [chat.dialect.convert_turn(m) if isinstance(m, TurnParts) else dict(m) for m in spoken]
    tools: Any = [tool.to_openai() for tool in context.tools] if chat.dialect.shows_tools else chat.dialect.no_tools
    try:
        rendering = chat.tokenizer.apply_chat_template(
            in_parts(messages) if chat.dialect.parts else messages, tools=tools, add_generation_prompt=True, tokenize=False
        )  # fmt: skip
    except Exception as error:
        result.differs.append(f"{where}: Transformers refuses it: {str(error)[:80]}")
        rendering = chat._render(context.spoken, context.tools, True)
    view = chat.tokenizer.decode(context.ids, skip_special_tokens=False)
    if view == rendering:
        return True
    result.to_the_letter = False
    return _same_outside(chat, context, rendering, result, where)


def _same_outside(chat: Chat, context: Context, rendering: str, result: TemplateResult, where: str) -> bool:
    """Return whether the text outside the model's turns is identical, and those have equal text, thought and calls."""
    place = len(context.rendered[0])
    right = rendering.startswith(context.rendered[0])
    turns = [m for m in context.spoken[context.opened :] if isinstance(m, TurnParts)]
    for turn, written in zip(turns, context.rendered[1:], strict=True):
        at = rendering.find(written, place) if right else -1
        own = (
            rendering[place:at].removesuffix(next((s for s in chat._stops if rendering[:at].endswith(s)), ""))
            if at >= 0
            else ""
        )
        _, thought, message = chat._split_turn(own, context.tools)
        calls = [(c.name, c.arguments) for c in message.tool_calls] if chat.dialect.writes_calls else []
        has_thought = not turn.thought or thought == turn.thought
        if at < 0 or not has_thought or calls != [(c.name, c.arguments) for c in turn.calls]:
            result.differs.append(
                f"{where}: {own[:200]!r} is not {turn.text[:200]!r}"
                if at >= 0
                else f"{where}: no {written[:100]!r} in {rendering[-300:]!r}"
            )
            return False
        place = at + len(written)
    if not right or place != len(rendering):
        result.differs.append(
            f"{where}: {rendering[place:][:200]!r} is not in view, or {context.rendered[0][-100:]!r} not at once"
        )
        return False
    return True


def _table(results: Sequence[TemplateResult]) -> str:
    lines = [
        "| template | shows tools | calls written as | calls read | two at once | exact | segments | with thoughts | verdict |",
        "| --- | --- | --- | ---: | --- | --- | ---: | ---: | --- |",
    ]
    for one in results:
        own = one.format if one.writes_calls else f"{one.format} (told)"
        lines.append(
            f"| {one.name} | {_yes(one.shows_tools)} | {own if one.format else ''} | {sum(one.calls.values())}/{len(ARGUMENTS)} "
            f"| {_yes(one.two_calls)} | {_yes(one.exact and one.exact_with_thoughts)} | {one.segments or ''} "
            f"| {one.segments_with_thoughts or ''} | {one.verdict} |"
        )
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else ""


def build_report(results: Sequence[TemplateResult]) -> tuple[dict[str, Any], str]:
    """Return (result, page)."""
    first = [one for one in results if "/" not in one.name]
    working = sum(one.works for one in first)
    result: dict[str, Any] = {
        "name": "templates",
        "measured": {
            "working": working,
            "of": len(first),
            "show_tools": sum(one.shows_tools for one in first),
            "write_calls": sum(one.writes_calls for one in first),
            "others_working": sum(one.works for one in results if "/" in one.name),
            "others": len(results) - len(first),
            "templates": {
                one.name: {k: v for k, v in asdict(one).items() if k not in ("seconds", "name")}
                | {"verdict": one.verdict}
                for one in results
            },
        },
        "ratios": {},
        "goal": f"{GOAL} of {len(first)} work",
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "jinja2")},
        "machine": {"system": platform.platform()},
        "seconds": round(sum(one.seconds for one in results), 1),
    }
    text = (
        "# Chat templates of real models\n\n"
        f"`python -m benchmarks templates`: {working} of the {len(first)} templates llama.cpp tests itself with work, and "
        f"{result['measured']['others_working']} of {result['measured']['others']} others. Sources: "
        "[tests/data/templates](../../tests/data/templates/README.md).\n\n"
        "*Shows tools*: the template renders tools; otherwise they are in the system message. *Calls written as*: the "
        "tool-call format that parses the calls of the template; *(told)*: the template renders none, and the format is "
        "explained in the prompt. *Segments*: number of segments of four turns, 1 if the template keeps all turns; *with "
        "thoughts*: with reasoning in each turn.\n\n"
        f"{_table(results)}\n"
    )
    return result, text


def main() -> int:
    """Examine templates and return 1 if fewer work than required."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; default: all, with stored results")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    templates = _built.real_templates()
    chosen = {n: t for n, t in templates.items() if not arguments.names or any(part in n for part in arguments.names)}
    results = [examine_template(name, template) for name, template in chosen.items()]
    if arguments.names:
        for one in results:
            print(json.dumps(asdict(one), indent=1, ensure_ascii=False), one.verdict)
        return 0
    result, text = build_report(results)
    if arguments.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        (RESULTS / "raw" / "templates.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        (RESULTS / "templates.md").write_text(text)
        print(text)
    return int(result["measured"]["working"] < GOAL)


if __name__ == "__main__":
    sys.exit(main())
