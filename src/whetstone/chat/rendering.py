"""Rendering of conversations by a tokenizer's template, with errors in one line.

Note:
    A tokenizer may have several templates. The one for tools is used if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from whetstone.chat.message import Image, Message, Text, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.template import OWN_NAMES, compile_template
from whetstone.chat.template_probe import Shown
from whetstone.errors import PolicyError, did_you_mean

Variable = bool | int | float | str
"""Value of an additional template variable."""


def template_renderer(tokenizer: Any, variables: Mapping[str, Variable] | None = None) -> Shown:
    """Return the renderer of a tokenizer's template.

    Of several templates, the one for tools is used.

    Args:
        tokenizer: Tokenizer.
        variables: Additional template variables by name.

    Raises:
        PolicyError: If there is no template, its Jinja is invalid, or it never reads one of the variables. The renderer
            raises it if the template fails.
    """
    variables = dict(variables or {})
    named = tokenizer_name(tokenizer)
    if not tokenizer.chat_template:
        raise PolicyError(
            f"{named}: the tokenizer has no chat template; set `chat_template` in its tokenizer_config.json"
        )
    try:
        template = compile_template(tokenizer.get_chat_template(tools=[{}]))
    except (TemplateError, ValueError) as error:
        where = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        raise PolicyError(f"{named}: its chat template fails: {where}{_short(error)}") from None

    for name in variables:
        if name in OWN_NAMES:
            raise PolicyError(f'"{name}" is already a variable of every chat template')
        if name not in template.reads:
            other = sorted(template.reads - OWN_NAMES - {*tokenizer.special_tokens_map})
            alternatives = f"; it reads {', '.join(other)}" if other else ", nor any other"
            raise PolicyError(
                f'{named}: its chat template never reads "{name}"{did_you_mean(name, other) or alternatives}'
            )

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        try:
            return template.render(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                special={**tokenizer.special_tokens_map, **variables},
            )
        except TemplateError as error:
            raise PolicyError(f"{named}: its chat template fails: {_short(error)}") from error

    return render


def uses_clock(tokenizer: Any) -> bool:
    """Return whether the output of a template can depend on the current time."""
    return compile_template(tokenizer.get_chat_template(tools=[{}])).tells_time


def tokenizer_name(tokenizer: Any) -> str:
    """Return the name of a tokenizer for messages."""
    return str(tokenizer.name_or_path or "tokenizer")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def write_as_text(format: ToolCallFormat, message: Message, tools: Sequence[ToolSpec]) -> str:
    """Write a turn with its calls in the format.

    If the format cannot express them, as plain text.
    """
    try:
        return format.write(message, tools)
    except (ValueError, RecursionError):
        return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()


def to_text(message: Message) -> str:
    """Return a message as text, for a policy that reads only text.

    Raises:
        PolicyError: If a message other than a tool result has an image; an image of a tool becomes `[image]`.
    """
    if message.role != "tool" and any(isinstance(part, Image) for part in message.content):
        raise PolicyError("the message contains an image, but this policy reads only text")
    text = ""
    for part in message.content:
        text += part.text if isinstance(part, Text) else "\n[image]" if text else "[image]"
    return text
