"""How do Mistral models call tools? A list of JSON objects behind `[TOOL_CALLS]`.

Easy to get wrong: the newer way, `[TOOL_CALLS]name[ARGS]{…}`, once for each call, with an id
between or without; all are read, the older is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import message_of, parsed, read_call, written
from whetstone.chat.message import Message, ToolCall, ToolSpec, user

_SIGN = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?\[ARGS\](.*)", re.DOTALL)


class Mistral:
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}]`; answers come as `[TOOL_RESULTS] {"content": …} [/TOOL_RESULTS]`
    in a user message, neighbouring ones in the same."""

    markers = (
        _SIGN,
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[ARGS]",
        "[CALL_ID]",
    )
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as one list of JSON schemas."""
        if not tools:
            return ""
        listed = json.dumps([tool.to_openai() for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS] {listed}[/AVAILABLE_TOOLS]"

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text, then its calls as one list."""
        if not message.tool_calls:
            return message.text
        calls = ", ".join(written(call, arguments="arguments", signs=(_SIGN,)) for call in message.tool_calls)
        return f"{message.text}{_SIGN} [{calls}]"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """What is said before the sign, and what is called behind it."""
        said, sign, behind = text.partition(_SIGN)
        if not sign:
            return message_of(text, [])
        found: list[ToolCall | str] = []
        if _NAMED.fullmatch(behind.split(_SIGN)[0]):
            for piece in behind.split(_SIGN):
                match = _NAMED.fullmatch(piece)
                found.append(
                    ToolCall(match[1], match[3].strip(), match[2] or "") if match else "a call is name[ARGS]{arguments}"
                )
            return message_of(said, found)
        values, wrong = parsed(behind.strip())
        if wrong or not isinstance(values, list) or not values:
            return message_of(said, [f"behind {_SIGN} stands a list of calls" + (f": {wrong}" if wrong else "")])
        return message_of(said, [read_call(value, arguments=("arguments",)) for value in values])

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Neighbouring answers share one user message."""
        shown: list[Message] = []
        previous = None
        for message in messages:
            body = json.dumps({"content": message.text}, ensure_ascii=False)
            wrapped = f"[TOOL_RESULTS] {body}[/TOOL_RESULTS]"
            if message.role != "tool":
                shown.append(message)
            elif previous == "tool":
                shown[-1] = user(shown[-1].text + wrapped)
            else:
                shown.append(user(wrapped))
            previous = message.role
        return shown
