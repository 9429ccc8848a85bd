# ruff: noqa: E501 - tables are lines
"""What can be done with the chat templates of real models? Each is given tools, calls, answers and thoughts.

    python benchmarks/templates.py            writes results/templates.json and results/templates.md
    python benchmarks/templates.py NAME…      only these, in full

A template *works* where what was written as a call is read as the same call, and where all that the model has in view,
over four turns, is what Transformers' own `apply_chat_template` shows of the same conversation at once: to the letter but for the model's own turns, which are there as sampled, and say, think and call the same.

Easy to get wrong: two renderings that are wrong in the same way. What is in view comes from sampled ids and what was put
behind them; what it is compared with is one rendering at once, by another library.
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
    fitting_format,
    tool_result,
    user,
)
from whetstone.chat.dialect import Speech, in_parts
from whetstone.errors import WhetstoneError

sys.path.append(str(Path(__file__).parents[1] / "tests"))
_built: Any = importlib.import_module("tests_templates")
RESULTS = Path(__file__).parent / "results"
GOAL = 66
"""Of the seventy that llama.cpp tests itself with."""

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
class Found:
    """What was found of one template."""

    name: str
    format: str = ""
    shows_tools: bool = False
    writes_calls: bool = False
    """In the format, by itself."""
    calls: dict[str, bool] = field(default_factory=dict)
    """Whether a call was read as it was written."""
    two_calls: bool = False
    exact: bool = False
    exact_with_thoughts: bool = False
    to_the_letter: bool = True
    """Also the model's own turns are written as the template would."""
    segments: int = 0
    """That a conversation of four turns took; 1: the template keeps everything."""
    segments_with_thoughts: int = 0
    refused: str = ""
    seconds: float = 0.0
    differs: list[str] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether an agent can be trained with it as it is."""
        return not self.refused and all(self.calls.values()) and self.exact and self.exact_with_thoughts

    @property
    def verdict(self) -> str:
        """In a word or a line."""
        wrong = [name for name, right in self.calls.items() if not right]
        if self.refused:
            return f"refused: {self.refused}"
        if wrong:
            return f"a call is not read as it was written: {', '.join(wrong)}"
        return "works" if self.works else "the history is not exact"


def tried(name: str, template: str) -> Found:
    """What can be done with one template."""
    found, begun = Found(name), time.perf_counter()
    try:
        tokenizer = _built.real_tokenizer(name, template)
        found.format = fitting_format(tokenizer)
        chat = Chat(tokenizer, FORMATS[found.format]())
        found.shows_tools, found.writes_calls = chat.dialect.shows_tools, chat.dialect.writes_calls
        found.calls = {kind: _same(chat, [(tool, given)]) for kind, (tool, given) in ARGUMENTS.items()}
        found.two_calls = _same(chat, [(WEATHER, {"city": "Oslo"}), (WEATHER, {"city": "Rome", "days": 3})])
        found.exact, found.segments = _conversation(chat, found, thought="")
        found.exact_with_thoughts, found.segments_with_thoughts = _conversation(chat, found, thought="hm, so:\nwell")
    except WhetstoneError as error:
        found.refused = str(error).partition(": ")[2] or str(error)
    found.seconds = time.perf_counter() - begun
    return found


def _same(chat: Chat, calls: Sequence[tuple[ToolSpec, Mapping[str, Any]]]) -> bool:
    """Whether calls are read as they were written, and nothing else with them."""
    message = assistant("", *(ToolCall(tool.name, json.dumps(given)) for tool, given in calls))
    try:
        read = chat.read(chat.write(message, TOOLS), TOOLS, turn=0)
    except ValueError:  # it says that it cannot be written
        return False
    return [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [(tool.name, given) for tool, given in calls]


def _conversation(chat: Chat, found: Found, *, thought: str) -> tuple[bool, int]:
    """(whether what is in view was always what is rendered at once, how many segments it took)"""
    said = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    rain = ToolCall("get_weather", '{"city": "Oslo", "days": 2}')
    both = (rain, ToolCall("get_weather", '{"city": "Rome"}')) if found.two_calls and chat.dialect.several else (rain,)
    turns: list[tuple[Message, list[Message]]] = [
        (assistant(said, rain), [tool_result("rain, 4 °C", call_id="call_0_0")]),
        (assistant(said, *both), [tool_result(f"sun {i}", call_id=f"call_1_{i}") for i in range(len(both))]),
        (assistant(f"{said}Rain in Oslo."), [user("And tomorrow?")]),
        (assistant(f"{said}Who knows."), [user("Thanks.")]),
    ]
    context, segments, exact = chat.open([user("How is it in Oslo?")], TOOLS), 1, True
    exact &= _at_once(chat, context, found, "opened")
    for number, (action, answers) in enumerate(turns):
        sampled = chat.write(action, TOOLS)
        following = chat.extend(context, sampled, answers)
        segments += following.opens_segment
        if not following.opens_segment:
            exact &= following.ids == (*context.ids, *sampled, *following.new.ids)
        exact &= _at_once(chat, following, found, f"turn {number + 1}{', with thoughts' if thought else ''}")
        context = following
    return exact, segments


def _at_once(chat: Chat, context: Context, found: Found, where: str) -> bool:
    """Whether what is in view is what Transformers shows of the conversation, rendered at once."""
    earlier = context.opened  # what the model said before the segment stands there without forged signs
    spoken = [
        chat._cleared(m, context.tools) if isinstance(m, Speech) and i < earlier else m
        for i, m in enumerate(context.spoken)
    ]
    messages = [chat.dialect.speech(m) if isinstance(m, Speech) else dict(m) for m in spoken]
    tools: Any = [tool.to_openai() for tool in context.tools] if chat.dialect.shows_tools else chat.dialect.no_tools
    try:
        shown = chat.tokenizer.apply_chat_template(
            in_parts(messages) if chat.dialect.parts else messages, tools=tools, add_generation_prompt=True, tokenize=False
        )  # fmt: skip
    except Exception as error:
        found.differs.append(f"{where}: Transformers refuses it: {str(error)[:80]}")
        shown = chat._render(context.spoken, context.tools, True)
    view = chat.tokenizer.decode(context.ids, skip_special_tokens=False)
    if view == shown:
        return True
    found.to_the_letter = False
    return _same_outside(chat, context, shown, found, where)


def _same_outside(chat: Chat, context: Context, shown: str, found: Found, where: str) -> bool:
    """Whether all but the model's own turns is the same to the letter, and they say, think and call the same."""
    place = len(context.shown[0])
    right = shown.startswith(context.shown[0])
    turns = [m for m in context.spoken[context.opened :] if isinstance(m, Speech)]
    for turn, written in zip(turns, context.shown[1:], strict=True):
        at = shown.find(written, place) if right else -1
        own = (
            shown[place:at].removesuffix(next((s for s in chat._stops if shown[:at].endswith(s)), ""))
            if at >= 0
            else ""
        )
        _, thought, message = chat._taken_apart(own, context.tools)
        calls = [(c.name, c.arguments) for c in message.tool_calls] if chat.dialect.writes_calls else []
        kept = not turn.thought or thought == turn.thought
        if at < 0 or not kept or calls != [(c.name, c.arguments) for c in turn.calls]:
            found.differs.append(
                f"{where}: {own[:200]!r} is not {turn.text[:200]!r}"
                if at >= 0
                else f"{where}: no {written[:100]!r} in {shown[-300:]!r}"
            )
            return False
        place = at + len(written)
    if not right or place != len(shown):
        found.differs.append(
            f"{where}: {shown[place:][:200]!r} is not in view, or {context.shown[0][-100:]!r} not at once"
        )
        return False
    return True


def _table(found: Sequence[Found]) -> str:
    lines = [
        "| template | shows tools | calls written as | calls read | two at once | exact | segments | with thoughts | verdict |",
        "| --- | --- | --- | ---: | --- | --- | ---: | ---: | --- |",
    ]
    for one in found:
        own = one.format if one.writes_calls else f"{one.format} (told)"
        lines.append(
            f"| {one.name} | {_yes(one.shows_tools)} | {own if one.format else ''} | {sum(one.calls.values())}/{len(ARGUMENTS)} "
            f"| {_yes(one.two_calls)} | {_yes(one.exact and one.exact_with_thoughts)} | {one.segments or ''} "
            f"| {one.segments_with_thoughts or ''} | {one.verdict} |"
        )
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else ""


def reported(found: Sequence[Found]) -> tuple[dict[str, Any], str]:
    """(the results, the same as a page)"""
    first = [one for one in found if "/" not in one.name]
    working = sum(one.works for one in first)
    result: dict[str, Any] = {
        "name": "templates",
        "measured": {
            "working": working,
            "of": len(first),
            "show_tools": sum(one.shows_tools for one in first),
            "write_calls": sum(one.writes_calls for one in first),
            "others_working": sum(one.works for one in found if "/" in one.name),
            "others": len(found) - len(first),
            "templates": {
                one.name: {k: v for k, v in asdict(one).items() if k not in ("seconds", "name")}
                | {"verdict": one.verdict}
                for one in found
            },
        },
        "ratios": {},
        "goal": f"{GOAL} of {len(first)} work",
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "jinja2")},
        "machine": {"system": platform.platform()},
        "seconds": round(sum(one.seconds for one in found), 1),
    }
    text = (
        "# Chat templates of real models\n\n"
        f"`python benchmarks/templates.py`: {working} of the {len(first)} templates llama.cpp tests itself with work, and "
        f"{result['measured']['others_working']} of {result['measured']['others']} others. Where they are from: "
        "[tests/data/templates](../../tests/data/templates/README.md).\n\n"
        "*Shows tools*: it is given them and shows them; else they stand in the system message. *Calls written as*: the "
        "tool-call format that reads what the template writes; *(told)*: it writes none, and calls are what the model says. "
        "*Segments*: that four turns take, 1 where the template keeps all that was said; *with thoughts*: where each turn "
        "has one.\n\n"
        f"{_table(found)}\n"
    )
    return result, text


def main() -> int:
    """Tries them; 1 where fewer work than are to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; without: all, and the results are written")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args()
    templates = _built.real_templates()
    chosen = {n: t for n, t in templates.items() if not asked.names or any(part in n for part in asked.names)}
    found = [tried(name, template) for name, template in chosen.items()]
    if asked.names:
        for one in found:
            print(json.dumps(asdict(one), indent=1, ensure_ascii=False), one.verdict)
        return 0
    result, text = reported(found)
    if asked.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        (RESULTS / "templates.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        (RESULTS / "templates.md").write_text(text)
        print(text)
    return int(result["measured"]["working"] < GOAL)


if __name__ == "__main__":
    sys.exit(main())
