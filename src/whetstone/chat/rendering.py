"""What does a tokenizer's own chat template show of a conversation? Failures are told in a line.

Easy to get wrong: a tokenizer may have several templates. That for tools is taken, where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from whetstone.chat.dialect import Shown
from whetstone.chat.message import Image, Message, Text, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.template import OWN_NAMES, compiled
from whetstone.errors import PolicyError, did_you_mean

Variable = bool | int | float | str
"""What a template may be given besides a conversation."""


def rendered(tokenizer: Any, variables: Mapping[str, Variable] | None = None) -> Shown:
    """What a tokenizer's chat template shows of a conversation; of several templates that for tools.

    Args:
        variables: What it is given besides, by name.

    Raises:
        PolicyError: It has none, or one that is no Jinja, or never reads one of the variables. What is returned raises
            it where the template fails.
    """
    variables = dict(variables or {})
    named = name_of(tokenizer)
    if not tokenizer.chat_template:
        raise PolicyError(
            f"{named}: the tokenizer has no chat template; set `chat_template` in its tokenizer_config.json"
        )
    try:
        template = compiled(tokenizer.get_chat_template(tools=[{}]))
    except (TemplateError, ValueError) as error:
        where = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        raise PolicyError(f"{named}: its chat template fails: {where}{_short(error)}") from None

    for name in variables:
        if name in OWN_NAMES:
            raise PolicyError(f'"{name}" is given to every chat template already')
        if name not in template.reads:
            other = sorted(template.reads - OWN_NAMES - {*tokenizer.special_tokens_map})
            said = f"; it reads {', '.join(other)}" if other else ", nor any other"
            raise PolicyError(f'{named}: its chat template never reads "{name}"{did_you_mean(name, other) or said}')

    def shown(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, asked: bool) -> str:
        try:
            return template.render(
                messages,
                tools=tools,
                add_generation_prompt=asked,
                special={**tokenizer.special_tokens_map, **variables},
            )
        except TemplateError as error:
            raise PolicyError(f"{named}: its chat template fails: {_short(error)}") from error

    return shown


def tells_time(tokenizer: Any) -> bool:
    """Whether a template that `rendered` took may show the same conversation otherwise tomorrow."""
    return compiled(tokenizer.get_chat_template(tools=[{}])).tells_time


def name_of(tokenizer: Any) -> str:
    """What messages call it."""
    return str(tokenizer.name_or_path or "tokenizer")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def in_words(format: ToolCallFormat, message: Message, tools: Sequence[ToolSpec]) -> str:
    """A turn with its calls as the format writes them; what it cannot write, as it was said."""
    try:
        return format.write(message, tools)
    except (ValueError, RecursionError):
        return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()


def in_text(message: Message) -> str:
    """What a policy that reads text alone is shown.

    Raises:
        PolicyError: Somebody asks about an image, which it cannot see; that a tool has made one can be said.
    """
    if message.role != "tool" and any(isinstance(part, Image) for part in message.content):
        raise PolicyError("the message holds an image, and this policy reads text only")
    shown = ""
    for part in message.content:
        shown += part.text if isinstance(part, Text) else "\n[image]" if shown else "[image]"
    return shown
