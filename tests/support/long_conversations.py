"""Conversations of many turns: calls, thoughts, plain and truncated turns, with results and questions after them."""

from contextlib import suppress

import pytest

from whetstone.chat import ToolCall, ToolSpec, assistant, incremental_tokenizer, tool_result, user
from whetstone.errors import PolicyError

CALCULATOR = ToolSpec(
    "calculator",
    "Evaluate an expression.",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)


def call(number):
    return ToolCall("calculator", f'{{"expression": "{number}+1"}}')


BLOCKS = [
    lambda chat, n: (chat.write(assistant(f"the number {n}"), [CALCULATOR]), [user(f"and {n}?")]),
    lambda chat, n: (chat.write(assistant("", call(n)), [CALCULATOR]), [tool_result(f"{n + 1}", call_id="call_0_0")]),
    lambda chat, n: (
        chat.write(assistant(f"<think>I add {n}</think>", call(n)), [CALCULATOR]),
        [tool_result(f"{n + 1}", call_id="call_0_0")],
    ),
    lambda chat, n: (chat.write(assistant(f"<think>so {n}</think>done"), [CALCULATOR]), [user("<think>no"), user("x")]),
    lambda chat, n: (chat.encode(f"cut off {n}"), [user(f"continue {n}")]),
]
"""Turns of the model with the messages after them, by their number."""


def extend_with(chat, blocks, *, all_rendered):
    """Return the contexts after each block, until the template rejects one.

    Args:
        chat: Chat of a tokenizer.
        blocks: Functions (chat, number) → tokens of a turn and the messages after it.
        all_rendered: Number of turns up to which all turns are rendered.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental_tokenizer, "_ALL_RENDERED_TURNS", all_rendered)
        contexts = [chat.open([user("hello")], [CALCULATOR])]
        with suppress(PolicyError):
            for number, block in enumerate(blocks):
                contexts.append(chat.extend(contexts[-1], *block(chat, number)))
    return [(each.ids, each.opens_segment) for each in contexts]
