"""Tool calls of Llama 3 models: JSON objects with `name` and `parameters`, and nothing else in the turn.

Note:
    An answer may be JSON too. An object is a call if it starts the turn and has a `name`, or if it has `name` and
    `parameters` in this order; several calls are separated by semicolons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import build_message, decode_calls, write_call, write_schemas
from whetstone.chat.formats.scanning import Found, join_text
from whetstone.chat.message import Message, ToolSpec, user

_TAG = "<|python_tag|>"
_STARTS = re.compile(r'\{(?:\s*"(?:id|type)"\s*:\s*"[^"]*"\s*,)*\s*"(?:name|parameters|arguments)"\s*:')

_FRAME = re.compile(r"(?:<\|python_start\|>)?(.*?)<\|python_end\|>\s*(?=\{)", re.DOTALL)


def _find_call(text: str) -> int | None:
    """Return the position of the first object with a name and parameters in a text.

    The result is None if there is none.
    """
    match = re.search(
        r'\{(?:\s*"(?:id|type)"\s*:\s*"[^"]*"\s*,)*\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:', text
    )
    return None if match is None else match.start()


class Llama3:
    """Tool-call format of Llama 3: `{"name": …, "parameters": {…}}`.

    Results are written as `{"output": …}` in a user message.
    """

    markers = (_TAG,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with instructions for calls; empty without tools."""
        if not tools:
            return ""
        return (
            "You have access to the following functions. To call one, respond with a JSON object alone, in the format "
            '{"name": function name, "parameters": dictionary of argument name and its value}. '
            f"Do not use variables. Separate several calls by ;\n\n{write_schemas(tools)}"
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message, or its calls.

        Raises:
            ValueError: If the message has both, because a turn with calls contains nothing else.
        """
        if not message.tool_calls:
            return message.text
        if message.text:
            raise ValueError("a turn in this format contains either text or calls")
        return "; ".join(write_call(call, arguments="parameters", signs=(_TAG,)) for call in message.tool_calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the calls if the turn consists of them or contains one after text.

        Otherwise the turn is text.
        """
        body, before = text.strip(), ""
        if (framed := _FRAME.match(body)) is not None:  # Llama 4 writes the text of a turn with calls between markers
            before, body = framed[1], body[framed.end() :]
            text = body
        if _STARTS.match(body) is None:
            before, tag, body = text.partition(_TAG)
            if not tag and (start := _find_call(text)) is not None:
                before, tag, body = text[:start], _TAG, text[start:]
            if not tag:
                return build_message(text, [])
        body = body.strip()
        blocks: list[Found] = []
        position = 0
        while body.startswith("{", position):
            try:
                calls, position = decode_calls(body, position, arguments="parameters")
            except ValueError as error:
                blocks.append(f"a call must be a JSON object: {error}")
                return build_message(before.strip(), blocks)
            blocks += calls
            separator = re.compile(r"[;,\s]*(?:<\|python_tag\|>)?\s*").match(body, position)
            position = separator.end() if separator is not None else position
        if not blocks:
            return build_message(before.strip(), [f"{_TAG} must be followed by a call as a JSON object"])
        if position < len(body) and not before.strip():
            return build_message(
                "", [*(one for one in blocks if isinstance(one, str)), "text follows the calls of a turn"]
            )
        return build_message(join_text([before.strip(), body[position:]]), blocks)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return each tool result as a separate user message."""
        return [
            user(json.dumps({"output": message.text}, ensure_ascii=False)) if message.role == "tool" else message
            for message in messages
        ]
