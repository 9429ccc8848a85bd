"""How do Llama 3 models call tools? A JSON object with `name` and `parameters`, and nothing else in the turn.

Easy to get wrong: an answer may be JSON, too. Only an object that begins the turn and has both keys is a call; several
are separated by semicolons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from whetstone.chat.formats.json_call import message_of, read_call, schemas, written
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_TAG = "<|python_tag|>"


class Llama3:
    """`{"name": …, "parameters": {…}}`; answers come as `{"output": …}` in a user message."""

    markers = (_TAG,)
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        if not tools:
            return ""
        return (
            "You have access to the following functions. To call one, respond with a JSON object alone, in the format "
            '{"name": function name, "parameters": dictionary of argument name and its value}. '
            f"Do not use variables. Separate several calls by ;\n\n{schemas(tools)}"
        )

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, or its calls.

        Raises:
            ValueError: It has both; a turn that calls says nothing else.
        """
        if not message.tool_calls:
            return message.text
        if message.text:
            raise ValueError("a turn in this format either says something or calls")
        return "; ".join(written(call, arguments="parameters", signs=(_TAG,)) for call in message.tool_calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The calls where the turn begins with one; otherwise what it says."""
        tagged, body = text.lstrip().startswith(_TAG), text.strip().removeprefix(_TAG).strip()
        found: list[ToolCall | str] = []
        decoder, place = json.JSONDecoder(), 0
        while body.startswith("{", place):
            try:
                value, place = decoder.raw_decode(body, place)
            except (ValueError, RecursionError) as error:
                found.append(f"a call is a JSON object: {error}")
                break
            found.append(read_call(value, arguments=("parameters", "arguments")))
            while place < len(body) and body[place] in "; \n":
                place += 1
        is_call = tagged or '"name"' in body.partition(",")[0]
        if not found or not is_call:
            return message_of(text, [f"{_TAG} and no call"] if _TAG in text else [])
        if place < len(body) and all(isinstance(call, ToolCall) for call in found):
            found = ["a turn that calls says nothing else"]
        return message_of("", found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a message of its own."""
        return [
            user(json.dumps({"output": message.text}, ensure_ascii=False)) if message.role == "tool" else message
            for message in messages
        ]
