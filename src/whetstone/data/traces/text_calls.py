"""Tool calls in the text of messages, as Hermes datasets and Qwen templates write them, read into the OpenAI format.

    system     … <tools>[{"name": …, "parameters": …}]</tools> …
    assistant  I will look. <tool_call>{"name": "price", "arguments": {"item": "tea"}}</tool_call>
    tool       <tool_response>{"name": "price", "content": "4"}</tool_response>

The instructions for tools are removed from the system message, because the chat template of the trained model writes
its own. A value of Python (`{'name': …}`), as in older datasets, is read like JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.data.traces.message_shapes import MessageShapes
from whetstone.data.traces.records import RefusalReason

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>\s*(.*?)\s*</tool_response>\s*", re.DOTALL)
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_INTRODUCTION = re.compile(
    r"(?:You are a function calling AI model\.\s+)?You are provided with function signatures within\s"
)


def has_text_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether assistant messages contain `<tool_call>` in their text, and none has separate tool calls."""
    own = [message for message in messages if message["role"] == "assistant"]
    return any("<tool_call>" in str(message.get("content")) for message in own) and not any(
        message.get("tool_calls") for message in own
    )


def read_text_calls(messages: Sequence[Mapping[str, Any]], shapes: MessageShapes) -> list[dict[str, Any]]:
    """Convert tool calls and results in the text of messages into separate calls and results.

    Args:
        messages: Messages in the OpenAI format.
        shapes: Receives the declarations of tools in the system message, and the first problem.
    """
    read: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        text, role = str(message.get("content") or ""), message["role"]
        if role == "system" and "<tools>" in text:
            rest = _read_system(text, shapes)
            if rest:
                read.append({**message, "content": rest})
        elif role == "assistant" and "<tool_call>" in text:
            read.append({**message, **_read_calls(text, index, shapes)})
        elif role in ("tool", "user") and (results := _read_results(text)) is not None:
            for result in results:
                shapes.check_text(result["content"], f"messages[{index}]")
                read.append({"role": "tool", **result})
        else:
            read.append(dict(message))
    return read


def _read_calls(text: str, index: int, shapes: MessageShapes) -> dict[str, Any]:
    thought, closing, rest = text.rpartition("</think>")
    blocks = _CALL.findall(rest)
    remaining = _CALL.sub("", rest)
    if "<tool_call>" in remaining:
        shapes.add_problem(RefusalReason.TRUNCATED, f"messages[{index}]: <tool_call> without </tool_call>")
    values: list[Any] = []
    for block in blocks:
        try:
            values += _decode(block)
        except ValueError:
            shapes.add_problem(
                RefusalReason.ARGUMENTS, f"messages[{index}]: the text between <tool_call> tags is not JSON"
            )
    calls = shapes.read([{"role": "assistant", "content": "", "tool_calls": values}], f"messages[{index}]")
    content = f"{thought}{closing}{remaining}".strip()
    return {"content": content, **{key: calls[0][key] for key in ("tool_calls",) if key in calls[0]}}


def _read_results(text: str) -> list[dict[str, Any]] | None:
    """Return the results in a message that consists of `<tool_response>` blocks; None for any other message."""
    if "<tool_response>" not in text or _RESPONSE.sub("", text):
        return None
    return [_read_result(block) for block in _RESPONSE.findall(text)]


def _read_result(block: str) -> dict[str, Any]:
    try:
        (value,) = _decode(block)
    except ValueError:
        return {"content": block}
    if not isinstance(value, Mapping) or not {"name", "content"} <= value.keys() <= {"name", "content", "tool_call_id"}:
        return {"content": block}
    content = value["content"]
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    call_id = value.get("tool_call_id")
    return {"content": text, "name": str(value["name"]), **({"tool_call_id": str(call_id)} if call_id else {})}


def _read_system(text: str, shapes: MessageShapes) -> str:
    """Return a system message without its instructions for tools, and store the tools.

    The instructions extend from the paragraph that first names `<tools>` to the example of a call after the
    declarations, or to the end of the declarations if there is no example.
    """
    blocks = list(_TOOLS.finditer(text))
    declared = next((block for block in reversed(blocks) if block[1].strip()), None)
    if declared is None:
        shapes.add_problem(RefusalReason.MISSING_SCHEMA, "system: <tools> without declarations")
        return text
    try:
        shapes.tools += _decode(declared[1].strip())
    except ValueError:
        shapes.add_problem(RefusalReason.MISSING_SCHEMA, "system: the text between <tools> tags is not JSON")
        return text
    first = text.find("<tools>") + 1
    start = text.rfind("\n\n", 0, first) + 1
    sentence = _INTRODUCTION.search(text, start, first)
    start = sentence.start() if sentence is not None else start
    before = text[:start].rstrip()
    for heading in ("\n\nYou may call one or more functions", "\n\nYou may call functions"):
        place = before.rfind(heading)
        if place >= 0 and "\n\n" not in before[place + 2 :]:
            before = before[:place].rstrip()
    before = re.sub(r"(?:\A|\n)#+ *tools *\Z", "", before, flags=re.IGNORECASE).rstrip()
    end = text.rfind("</tool_call>")
    end = end + len("</tool_call>") if end > declared.end() else declared.end()
    return f"{before}\n\n{text[end:].strip()}".strip()


def _decode(text: str) -> list[Any]:
    """Return the values of a text: a JSON list, or one value per line, or one value.

    Raises:
        ValueError: The text is neither JSON nor a literal of Python.
    """
    try:
        value = json.loads(text)
        return value if isinstance(value, list) else [value]
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("neither JSON nor a literal of Python") from None
    return value if isinstance(value, list) else [value]
