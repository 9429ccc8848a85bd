"""Rendering of conversations with a tokenizer's template; template errors become one-line `PolicyError`s.

Note:
    A tokenizer may have several templates. The template for tools is used if there is one.
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
"""Value of an additional template variable, such as `enable_thinking`."""


def template_renderer(tokenizer: Any, variables: Mapping[str, Variable] | None = None) -> Shown:
    """Return a function that renders conversations with the chat template of a tokenizer.

    If the tokenizer has several templates, the template for tools is used.

    Args:
        tokenizer: Hugging Face tokenizer.
        variables: Additional template variables by name.

    Returns:
        Function (messages, tools, whether to add the generation prompt) → text; raises `PolicyError` if the template
        fails.

    Raises:
        PolicyError: If the tokenizer has no template, the Jinja is invalid, or the template never reads one of the
            variables.
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
            raise PolicyError(
                f'{named}: the template variable "{name}" cannot be set: every chat template receives it already'
            )
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
    """Return whether the text that a tokenizer's template renders can depend on the current time."""
    return compile_template(tokenizer.get_chat_template(tools=[{}])).tells_time


def tokenizer_name(tokenizer: Any) -> str:
    """Return the name or path of a tokenizer for messages; `tokenizer` if it has none."""
    return str(tokenizer.name_or_path or "tokenizer")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def write_as_text(format: ToolCallFormat, message: Message, tools: Sequence[ToolSpec]) -> str:
    """Return an assistant message with its calls as text of the tool-call format.

    If the format cannot express a call, the calls are written as `name(arguments)`, one per line after the text.
    """
    try:
        return format.write(message, tools)
    except (ValueError, RecursionError):
        return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()


def to_text(message: Message) -> str:
    """Return the content of a message as plain text, for a policy that reads only text.

    An image in a tool result becomes `[image]`.

    Raises:
        PolicyError: If a message other than a tool result has an image.
    """
    if message.role != "tool" and any(isinstance(part, Image) for part in message.content):
        raise PolicyError("the message contains an image, but this policy reads only text")
    text = ""
    for part in message.content:
        text += part.text if isinstance(part, Text) else "\n[image]" if text else "[image]"
    return text
