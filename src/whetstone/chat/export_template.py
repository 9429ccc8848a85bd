"""Jinja chat template of an exported model: renders messages and tools as in training.

Other programs render a conversation by `tokenizer.apply_chat_template(messages, tools=…)`. If the model's own template
renders tools, calls and results as `Chat` does, it is exported unchanged. Otherwise a preamble is put before the
template. The preamble converts OpenAI messages into the messages that `Chat` passes to the template:

- Tools are described in the system message.
- Calls become text of the tool-call format.
- Results are presented as the tool-call format presents them.
- Template variables have the values of the recipe.

Note:
    `Chat` breaks up look-alikes of special tokens in untrusted text, and so does the preamble. The model's own
    template does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from whetstone.chat.format_macros import write_calls_macro, write_literal, write_tools_macro
from whetstone.chat.incremental_tokenizer import Chat, Context
from whetstone.chat.message import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.template_probe import Dialect
from whetstone.errors import PolicyError, summarize_exception

_PROBES = (
    ToolSpec(
        "find_page",
        "Finds a page.\nReturns its text.",
        {"type": "object", "properties": {"query": {"type": "string", "description": "Words."}}, "required": ["query"]},
    ),
    ToolSpec(
        "add",
        "Adds numbers.",
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "First."},
                "b": {"type": "integer", "description": "Second."},
            },
            "required": ["a", "b"],
        },
    ),
)
_MAX_LOOK_ALIKES = 64
"""Maximum number of look-alikes that the preamble breaks up.

If there are more, it breaks up only the markers of the tool-call format.
"""
_START = "{#- Renders tools, calls and results as in training. -#}\n"
_END = "{{- '' }}"
"""Jinja expression that ends the preamble; without it, `trim_blocks` would trim the template that follows."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt of the model as messages, with its tokens in training, to compare templates with."""

    messages: tuple[dict[str, Any], ...]
    """Messages in the OpenAI format; arguments of calls are objects."""
    tools: tuple[ToolSpec, ...]
    """Tools that the prompt offers."""
    ids: tuple[int, ...]
    """[T] token ids that the model received in training."""
    sampled: tuple[tuple[int, int], ...] = ()
    """(start, end) positions in `ids` of earlier turns of the model, whose exact tokens messages may not carry."""


@dataclass(frozen=True, slots=True)
class TemplateDifference:
    """First difference between a prompt rendered by an exported template and the prompt in training."""

    text: str
    """Description of the difference in one line, with both texts."""
    is_own_turn: bool
    """Whether the difference is within an earlier turn of the model.

    Such a difference is unavoidable: sampled tokens may not be the tokens of their text, and messages drop details such
    as spaces around a call.
    """


@dataclass(frozen=True, slots=True)
class ExportedTemplate:
    """Chat template for other programs, and the result of its comparison with training."""

    source: str
    """Jinja source of the template, including the preamble if there is one."""
    is_original: bool
    """Whether the template is the model's own, without a preamble."""
    reproduced: int
    """Number of prompts that plain Transformers renders to exactly the tokens of training."""
    own_turns: int
    """Number of prompts that differ only in earlier turns of the model; see `TemplateDifference.is_own_turn`."""
    prompts: int
    """Number of prompts that were compared in total."""
    problem: str = ""
    """First difference of the remaining prompts, in one line; empty if there is none."""


def export_template(chat: Chat, prompts: Sequence[Prompt]) -> ExportedTemplate:
    """Return the chat template that reproduces the most prompts in plain Transformers.

    The model's own template is preferred; a preamble is added only if that reproduces more prompts. A template that
    still differs is returned with `ExportedTemplate.problem`.

    Args:
        chat: Chat of the trained model.
        prompts: Prompts of stored episodes, and of `probe_prompts`.
    """
    original = str(chat.tokenizer.get_chat_template(tools=[{}]))
    own = _tried(chat, original, prompts, is_original=True)
    if not own.problem:
        return own
    try:
        preamble = _preamble(chat)
    except PolicyError as error:
        return replace(own, problem=str(error))
    preceded = _tried(chat, f"{preamble}{original}", prompts, is_original=False)
    return preceded if preceded.reproduced > own.reproduced else replace(own, problem=preceded.problem)


def probe_prompts(chat: Chat, tools: Sequence[ToolSpec] = ()) -> tuple[Prompt, ...]:
    """Return prompts of short probe conversations, for a comparison of templates.

    The conversations have a call, parallel calls, and text. Turns that the tool-call format cannot write are left out.

    Args:
        chat: Chat of the trained model.
        tools: Tools of the run; one of the conversations offers them.
    """
    one = ToolCall("find_page", json.dumps({"query": "rivers of Norway"}))
    two = ToolCall("add", json.dumps({"a": 3, "b": 45}))
    prompts: list[Prompt] = []
    for opening, offered in (
        ([system("Be brief."), user("Hi there")], _PROBES),
        ([user("Hi there")], _PROBES),
        ([user("Hi there")], ()),
        ([system("Be brief."), user("Hi there")], tuple(tools)),
    ):
        context = chat.open(opening, offered)
        messages = list(opening)
        prompts.append(_prompt(messages, context))
        for turn, message in enumerate((assistant("", one), assistant("", one, two), assistant("One moment."))):
            if offered is not _PROBES and message.tool_calls:
                continue
            with suppress(ValueError):
                sampled = chat.write(message, offered)
                read = chat.read(sampled, offered, turn=turn)
                if read.malformed or len(read.tool_calls) != len(message.tool_calls):
                    continue
                after = [tool_result(f"result {i}", call_id=call.id) for i, call in enumerate(read.tool_calls)]
                after = after or [user("And now?")]
                context = chat.extend(context, sampled, after)
                messages += [read, *after]
                prompts.append(_prompt(messages, context))
    return tuple(prompts)


def as_openai(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """Convert messages into dictionaries for `apply_chat_template`.

    Arguments of calls become objects if they are valid JSON.
    """
    return tuple(map(_plain, messages))


def find_difference(tokenizer: Any, source: str, prompt: Prompt) -> TemplateDifference | None:
    """Compare a prompt rendered by a template in plain Transformers with its tokens in training.

    Args:
        tokenizer: Tokenizer that renders and tokenizes.
        source: Jinja source of the template.
        prompt: Prompt with its tokens in training.

    Returns:
        The first difference, or the error of the template; None if the tokens are identical.
    """
    tools = [tool.to_openai() for tool in prompt.tools] or None
    try:
        rendered = tokenizer.apply_chat_template(
            list(prompt.messages), tools=tools, add_generation_prompt=True, return_dict=True, chat_template=source
        )
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return TemplateDifference(f"it cannot be rendered: {summarize_exception(error, max_characters=200)}", False)
    ids = tuple(rendered["input_ids"])
    if ids == prompt.ids:
        return None
    pairs = enumerate(zip(ids, prompt.ids, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(ids), len(prompt.ids)))
    rendered_text, text = (repr(tokenizer.decode(each[place : place + 12])) for each in (ids, prompt.ids))
    is_own_turn = any(start <= place < end for start, end in prompt.sampled)
    return TemplateDifference(f"token {place} differs: {rendered_text} instead of {text}", is_own_turn)


def _prompt(messages: Sequence[Message], context: Context) -> Prompt:
    return Prompt(as_openai(messages), context.tools, context.ids)


def _plain(message: Message) -> dict[str, Any]:
    written = message.to_openai()
    written.pop("malformed", None)
    for call in written.get("tool_calls", ()):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(call["function"]["arguments"])
            if isinstance(arguments, dict):
                call["function"]["arguments"] = arguments
    return written


def _tried(chat: Chat, source: str, prompts: Sequence[Prompt], *, is_original: bool) -> ExportedTemplate:
    differences = [find_difference(chat.tokenizer, source, prompt) for prompt in prompts]
    reproduced = differences.count(None)
    own_turns = sum(each is not None and each.is_own_turn for each in differences)
    problem = next((each.text for each in differences if each is not None and not each.is_own_turn), "")
    return ExportedTemplate(source, is_original, reproduced, own_turns, len(prompts), problem)


# ------------------------------------------------------------ the preamble


def _preamble(chat: Chat) -> str:
    """Return the Jinja that converts OpenAI messages into the messages that `Chat` passes to the template.

    Raises:
        PolicyError: If the tool-call format cannot be written in Jinja.
    """
    dialect, format = chat.dialect, chat.format
    signs = [sign for sign in chat.look_alikes if len(sign) > 1]
    if len(signs) > _MAX_LOOK_ALIKES:
        signs = [sign for sign in signs if sign in format.markers]
    lines = [
        f"{{%- if {name} is not defined %}}{{%- set {name} = {write_literal(value)} %}}{{%- endif %}}"
        for name, value in chat.variables.items()
    ]
    if not dialect.shows_tools:
        lines.append(write_tools_macro(format))
    if not dialect.writes_calls:
        lines.append(write_calls_macro(format))
    lines.append("{%- set whetstone = namespace(messages=[], content='', called=[], given=[], count=0, answered=0) %}")
    lines += [
        "{%- for message in messages %}",
        "{%- set content = message.content if message.content is string else "
        "(message.content or []) | map(attribute='text') | join %}",
        "{%- if message.role != 'assistant' %}{%- set whetstone.content = content %}",
        f"{{%- for sign in [{', '.join(map(write_literal, signs))}] %}}{{%- set whetstone.content = "
        "whetstone.content | replace(sign, sign[:1] ~ '\u200b' ~ sign[1:]) %}{%- endfor %}",
        "{%- set content = whetstone.content %}{%- endif %}",
        "{%- if message.role == 'assistant' %}",
        *_assistant(dialect, writes_ids=_writes_ids(chat)),
        "{%- elif message.role == 'tool' %}",
        *(_answer(dialect) if dialect.shows_answers else _result(format)),
        "{%- else %}",
        _append("{'role': message.role, 'content': content}"),
        "{%- endif %}",
        "{%- endfor %}",
        "{%- set messages = whetstone.messages %}",
    ]
    lines += _first_messages(knows_system=chat.knows_system, shows_tools=dialect.shows_tools)
    if dialect.parts:
        lines += [
            "{%- set whetstone.messages = [] %}{%- for message in messages %}",
            "{%- if message.content is string %}",
            _append("dict(message, content=[{'type': 'text', 'text': message.content}])"),
            "{%- else %}",
            _append("message"),
            "{%- endif %}{%- endfor %}{%- set messages = whetstone.messages %}",
        ]
    empty = "none" if dialect.no_tools is None else "[]"
    lines.append(
        f"{{%- if not tools or {write_literal(not dialect.shows_tools)} %}}{{%- set tools = {empty} %}}{{%- endif %}}"
    )
    return _START + "".join(f"{line}\n" for line in lines) + _END


def _writes_ids(chat: Chat) -> bool:
    """Return whether the format writes an id for each call in the text of the model.

    Such ids are numbered per turn.
    """
    call = ToolCall("add", json.dumps({"a": 3, "b": 45}))
    with suppress(ValueError):
        text, _ = chat.write_turn(assistant("", call), _PROBES)
        return any(one.id for one in chat.format.read(text, _PROBES).tool_calls)
    return False


def _assistant(dialect: Dialect, *, writes_ids: bool) -> list[str]:
    opening, closing = map(write_literal, dialect.thought_frame)
    split = "content.split('</think>')"
    thought = f"{split}[:-1] | join('</think>') | trim"
    lines = ["{%- set thought = message.reasoning_content or message.reasoning or '' %}"]
    if dialect.thought_key or dialect.thought_signs[0] != "<think>":
        lines += [
            "{%- if not thought and '</think>' in content %}",
            f"{{%- set thought = {thought} %}}",
            "{%- if thought.startswith('<think>') %}{%- set thought = thought[7:] | trim %}{%- endif %}",
            f"{{%- set content = {split}[-1] | trim %}}",
            "{%- endif %}",
        ]
    lines.append("{%- set calls = message.tool_calls or [] %}")
    if not dialect.speaks_and_calls:
        lines.append("{%- if calls %}{%- set content = '' %}{%- endif %}")
    if not dialect.thought_key:
        lines.append(
            f"{{%- if thought %}}{{%- set content = {opening} ~ thought ~ {closing} ~ content %}}{{%- endif %}}"
        )
    call_id = _call_id(dialect.call_id)
    arguments = "function.arguments"
    if not dialect.objects:
        arguments = "(function.arguments if function.arguments is string else function.arguments | tojson)"
    if writes_ids:
        lines.append("{%- set whetstone.count = 0 %}")
    lines += [
        "{%- set whetstone.called = [] %}{%- set whetstone.given = [] %}{%- set whetstone.answered = 0 %}",
        "{%- for call in calls %}",
        "{%- set function = call.function or call %}",
        f"{{%- set id = {call_id} %}}",
        "{%- set whetstone.given = whetstone.given + [call.id] %}",
        "{%- set whetstone.called = whetstone.called + [{'type': 'function', 'id': id, "
        f"'function': {{'name': function.name, 'arguments': {arguments}}}}}] %}}",
        "{%- set whetstone.count = whetstone.count + 1 %}",
        "{%- endfor %}",
    ]
    if not dialect.writes_calls:
        lines.append(
            "{%- if calls %}{%- set content = whetstone_calls(content, whetstone.called, tools) %}{%- endif %}"
        )
    silence = write_literal(dialect.silence)
    entry = f"{{'role': 'assistant', 'content': content or ({silence} if calls else '')}}"
    lines.append(f"{{%- set spoken = {entry} %}}")
    if dialect.thought_key:
        lines.append(
            f"{{%- if thought %}}{{%- set spoken = dict(spoken, {dialect.thought_key}=thought) %}}{{%- endif %}}"
        )
    if dialect.writes_calls:
        calls = "whetstone.called" if dialect.several else "whetstone.called[:1]"
        lines.append(f"{{%- if calls %}}{{%- set spoken = dict(spoken, tool_calls={calls}) %}}{{%- endif %}}")
    return [*lines, _append("spoken")]


def _call_id(pattern: str) -> str:
    """Return the Jinja expression of a call's id for a pattern of `Dialect.call_id`."""
    if pattern == "call{index:05d}":
        return "'call%05d' | format(whetstone.count)"
    return (
        write_literal(pattern).replace("{name}", '" ~ function.name ~ "').replace("{index}", '" ~ whetstone.count ~ "')
    )


def _answer(dialect: Dialect) -> list[str]:
    if not dialect.writes_calls:
        return [_append("{'role': 'tool', 'content': content}")]
    return [
        "{%- set answered = namespace(call=none) %}",
        "{%- for call in whetstone.called %}"
        "{%- if (message.tool_call_id and whetstone.given[loop.index0] == message.tool_call_id) "
        "or (not message.tool_call_id and loop.index0 == whetstone.answered) %}",
        "{%- set answered.call = call %}{%- endif %}{%- endfor %}",
        "{%- set whetstone.answered = whetstone.answered + 1 %}",
        "{%- if answered.call %}",
        "{%- set name = answered.call.function.name %}",
        _append("{'role': 'tool', 'tool_call_id': answered.call.id, 'name': name, 'content': content}"),
        "{%- else %}",
        _append("{'role': 'user', 'content': content}"),
        "{%- endif %}",
    ]


def _result(format: ToolCallFormat) -> list[str]:
    """Return Jinja lines that present tool results as the format does, derived from samples.

    Raises:
        PolicyError: If the format writes anything other than constant text around a result.
    """
    texts = ['qz"one"q', 'qz"two"q']
    escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
    single = list(format.results([tool_result(texts[0])]))
    pair = list(format.results([tool_result(text) for text in texts]))
    for bodies, value in ((texts, "content"), (escaped, "(content | tojson)[1:-1]")):
        if len(single) != 1 or single[0].text.count(bodies[0]) != 1:
            continue
        before, after = single[0].text.split(bodies[0])
        entry = f"{{'role': {write_literal(single[0].role)}, 'content': text}}"
        start = f"{{%- set text = {write_literal(before)} ~ {value} ~ {write_literal(after)} %}}"
        if len(pair) == 2:
            return [start, _append(entry)]
        between = pair[0].text.removeprefix(before).partition(bodies[0])[2].partition(bodies[1])[0]
        joined = f"whetstone.messages[-1].content[:-{len(after)}]" if after else "whetstone.messages[-1].content"
        return [
            start,
            "{%- if loop.previtem is defined and loop.previtem.role == 'tool' %}",
            f"{{%- set text = {joined} ~ {write_literal(between)} ~ {value} ~ {write_literal(after)} %}}",
            "{%- set whetstone.messages = whetstone.messages[:-1] %}",
            "{%- endif %}",
            _append(entry),
        ]
    raise PolicyError(
        "the tool-call format writes tool results otherwise than as constant text around them, which no chat template "
        "can be derived from; export with another format"
    )


def _first_messages(*, knows_system: bool, shows_tools: bool) -> list[str]:
    """Return Jinja lines that place the system message and the description of the tools in the first message."""
    lines = []
    if not knows_system:
        lines.append(
            "{%- if messages | length > 1 and messages[0].role == 'system' and messages[1].role == 'user' %}"
            "{%- set messages = [{'role': 'user', 'content': messages[0].content ~ '\\n\\n' ~ messages[1].content}]"
            " + messages[2:] %}{%- endif %}"
        )
    if shows_tools:
        return lines
    first = "{'role': %s, 'content': %s}"
    alone = first % ("messages[0].role", "described ~ '\\n\\n' ~ messages[0].content")
    alone = f"[{alone}] + messages[1:]"
    if knows_system:
        alone = f"[{first % (write_literal('system'), 'described')}] + messages"
    return [
        *lines,
        "{%- set described = whetstone_tools(tools) if tools else '' %}",
        "{%- if described and messages and messages[0].role == 'system' %}",
        "{%- set described = messages[0].content ~ '\\n\\n' ~ described %}",
        "{%- set messages = [{'role': 'system', 'content': described}] + messages[1:] %}",
        f"{{%- elif described %}}{{%- set messages = {alone} %}}",
        "{%- endif %}",
    ]


def _append(entry: str) -> str:
    return f"{{%- set whetstone.messages = whetstone.messages + [{entry}] %}}"
