"""Jinja macros of a tool-call format, for exported templates: describe tools and write calls.

If a format writes tools and calls as JSON between constant text, the macros are derived from samples that the format
writes. Other formats provide their own macros (`DescribesInJinja`, `WritesInJinja`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat.message import ToolCall, ToolSpec, assistant
from whetstone.chat.protocol import DescribesInJinja, ToolCallFormat, WritesInJinja
from whetstone.errors import PolicyError

_NAMES = ("qzonezq", "qztwozq", "qzsixzq")


def write_tools_macro(format: ToolCallFormat) -> str:
    """Return the Jinja macro `whetstone_tools(tools)`, which renders the text of `format.describe`.

    Raises:
        PolicyError: If the format describes tools neither as JSON between constant text nor with its own macro.
    """
    return f"{{%- macro whetstone_tools(tools) %}}{_tools_body(format)}{{%- endmacro %}}"


def write_calls_macro(format: ToolCallFormat) -> str:
    """Return the Jinja macro `whetstone_calls(content, calls, tools)`, which renders the text of `format.write`.

    Raises:
        PolicyError: If the format writes calls neither as JSON between constant text nor with its own macro.
    """
    return f"{{%- macro whetstone_calls(content, calls, tools) %}}{_calls_body(format)}{{%- endmacro %}}"


def _tools_body(format: ToolCallFormat) -> str:
    if implements_protocol(format, DescribesInJinja):
        return format.jinja_tools
    tools = [ToolSpec(name, "x", {"type": "object", "properties": {}}) for name in _NAMES]
    bodies = [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools]
    parts = _repeated(lambda count: format.describe(tools[:count]), bodies, ("",) * len(tools))
    if parts is None or parts[1] is None:
        raise PolicyError(
            "the tool-call format describes tools in a way that no chat template can be derived from; implement "
            "`DescribesInJinja`, or export with another format"
        )
    head, between, tail = map(write_literal, parts)
    return (
        "{%- for tool in tools %}{%- set function = tool.function or tool %}"
        f"{{{{- {head} if loop.first else {between} }}}}"
        "{{- {'type': 'function', 'function': {'name': function.name, 'description': function.description or '', "
        "'parameters': function.parameters or {'type': 'object', 'properties': {}}}} | tojson }}"
        f"{{%- endfor %}}{{{{- {tail} }}}}"
    )


def _calls_body(format: ToolCallFormat) -> str:
    if implements_protocol(format, WritesInJinja):
        return format.jinja_calls
    bodies = [json.dumps({"x": text}) for text in ("qzAq", "qzBq", "qzCq")]
    calls = [ToolCall(name, body) for name, body in zip(_NAMES, bodies, strict=True)]
    parts = _repeated(lambda count: format.write(assistant("", *calls[:count]), ()), bodies, _NAMES)
    if parts is None:
        raise PolicyError(
            "the tool-call format writes calls in a way that no chat template can be derived from; implement "
            "`WritesInJinja`, or export with another format"
        )
    head, between, tail = parts
    separator = "\n"
    with suppress(ValueError):
        both = format.write(assistant("T", calls[0]), ())
        separator = both.removeprefix("T").removesuffix(format.write(assistant("", calls[0]), ()))

    def named(text: str) -> str:
        return write_literal(text).replace(_NAMES[0], '" ~ call.function.name ~ "')

    several = f"{named(between)} if not loop.first else {named(head)}" if between is not None else named(head)
    refused = (
        ""
        if between is not None
        else "{%- if calls | length > 1 %}{{- raise_exception('one call per turn') }}{%- endif %}"
    )
    arguments = "call.function.arguments if call.function.arguments is string else call.function.arguments | tojson"
    return (
        f"{refused}{{{{- content }}}}{{%- if content %}}{{{{- {write_literal(separator)} }}}}{{%- endif %}}"
        f"{{%- for call in calls %}}{{{{- {several} }}}}{{{{- {arguments} }}}}{{%- endfor %}}"
        f"{{{{- {write_literal(tail)} }}}}"
    )


def _repeated(
    write: Callable[[int], str], bodies: Sequence[str], names: Sequence[str]
) -> tuple[str, str | None, str] | None:
    """Derive the constant text before, between and after the items of a list from samples of one to three items.

    Args:
        write: Returns the text of the first `count` sample items.
        bodies: JSON body of each sample item.
        names: Name of each sample item; empty strings if the text has no names.

    Returns:
        (before, between, after), in which the name of the first item marks the slot of a name. `between` is None if the
        format writes one item only. None if an item is not written as its body between constant text.
    """
    try:
        single = write(1)
    except ValueError:
        return None
    if single.count(bodies[0]) != 1:
        return None
    before, after = single.split(bodies[0])
    if names[0] and names[0] in after:
        return None
    try:
        pair, triple = write(2), write(3)
    except ValueError:
        return before, None, after
    if bodies[1] not in pair or not pair.startswith(before + bodies[0]):
        return None
    slot = pair[len(before + bodies[0]) :].partition(bodies[1])[0]
    between = slot.replace(names[1], names[0]) if names[1] else slot
    steps = [between.replace(names[0], name) if name else between for name in names[1:]]
    expected = before + bodies[0] + "".join(chain.from_iterable(zip(steps, bodies[1:], strict=True))) + after
    return (before, between, after) if triple == expected else None


def write_literal(value: Any) -> str:
    """Return a value as a Jinja literal; strings are in double quotes."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False)
