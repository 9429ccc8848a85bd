"""Messages of any trace format, read into the OpenAI format.

    {"role": "assistant", "content": …, "tool_calls": [{"function": {"name": …, "arguments": "{…}"}}]}  OpenAI chat
    {"type": "function_call", "call_id": …, "name": …, "arguments": "{…}"}                             OpenAI Responses
    {"role": "assistant", "content": [{"type": "tool_use", "id": …, "name": …, "input": {…}}]}          Anthropic
    {"role": "assistant", "parts": [{"type": "tool_call", "id": …, "name": …, "arguments": {…}}]}       OpenTelemetry
    {"lc": 1, "type": "constructor", "id": [… "AIMessage"], "kwargs": {"content": …, "tool_calls": …}}  LangChain
    {"type": "ai", "data": {"content": …}}, {"type": "ai", "content": …}                                LangChain
    {"from": "gpt", "value": …}                                                                         ShareGPT

The shape is decided per message. A message with a problem is kept without the part that causes it, so that calls of one
conversation still match; the first problem is stored.

Note:
    Reasoning is stored as `reasoning_content`, and a text that ends at the token limit is a problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from whetstone.data.dataset_formats import MARKS, ROLES
from whetstone.data.traces.records import ImportProblem, RefusalReason, TraceError
from whetstone.tasks.readers import parse_row_object

_TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHT_PARTS = ("reasoning", "thinking")
_CALL_PARTS = ("tool_call", "tool_use")
_RESULT_PARTS = ("tool_call_response", "tool_result")
_MEDIA_PARTS = ("image_url", "image", "input_image", "input_audio", "audio", "video", "file", "uri", "blob")
_CALL_ROLES = ("function_call", "tool_call", "tool_calls")
_ITEM_CALLS = ("function_call", "tool_call", "custom_tool_call")
_ITEM_RESULTS = ("function_call_output", "custom_tool_call_output")
_LANGCHAIN_TYPES = ("human", "ai", "system", "tool", "function", "chat", "developer")
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_LIMIT_REASONS = ("length", "max_tokens", "max_output_tokens", "MAX_TOKENS")
_MEDIA_KEYS = ("images", "image", "videos", "video", "audios", "audio")
_CUT_OFF = re.compile(r"(?:\[truncated\]|<truncated\b[^<>]*>|\(truncated\)|… ?truncated)\s*\Z", re.IGNORECASE)
_KNOWN = frozenset({
    "role", "from", "content", "value", "parts", "tool_calls", "function_call", "tool_call_id", "name", "tool_name",
    "type", "id", "finish_reason", "refusal", "malformed", "additional_kwargs", "response_metadata", "usage_metadata",
    "invalid_tool_calls", "status", "example", "artifact", "lc", "kwargs", "data", "call_id", "arguments", "output",
    "summary", "audio", "annotations", "tool_call_chunks", "chunk_position", "encrypted_content",
    *_THOUGHT_KEYS, *_MEDIA_KEYS, *MARKS, "masked",
})  # fmt: skip


class MessageShapes:
    """Reads the messages of one record into the OpenAI format, and stores the first problem instead of raising it."""

    def __init__(self) -> None:
        self.problem: ImportProblem | None = None
        """First problem; None if all messages can be read."""
        self.tools: list[Any] = []
        """Declarations of tools that are written among the messages."""
        self.unread: dict[str, None] = {}
        """Keys that nothing reads, such as `messages[].mood`."""

    def read(self, value: Any, path: str = "messages") -> list[dict[str, Any]]:
        """Read messages from a list, a single message, or the JSON of either.

        Args:
            value: The messages.
            path: Place in the record, for details of problems.
        """
        value = decode_text(value)
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.add_problem(RefusalReason.NO_MESSAGES, f"{path}: a list of messages is expected, got {_kind(value)}")
            return []
        messages: list[dict[str, Any]] = []
        for index, item in enumerate(value):
            for message in self._read_item(item, f"{path}[{index}]"):
                continues = message.pop("continues", False)
                if continues and messages and messages[-1]["role"] == "assistant":
                    _join(messages[-1], message)
                else:
                    messages.append(message)
        return messages

    def add_problem(self, reason: RefusalReason, detail: str) -> None:
        """Store a problem unless an earlier one is stored."""
        self.problem = self.problem or ImportProblem(reason, detail)

    def _read_item(self, item: Any, path: str) -> Iterator[dict[str, Any]]:
        if not isinstance(item, Mapping):
            self.add_problem(RefusalReason.NO_MESSAGES, f"{path}: a message is an object, got {_kind(item)}")
            return
        fields = _unwrap(item)
        kind = fields.get("type")
        if kind in _ITEM_CALLS and "role" not in fields:
            calls = self._read_calls([{**fields, "id": fields.get("call_id") or fields.get("id")}], path)
            yield {"role": "assistant", "content": "", "tool_calls": calls, "continues": True}
        elif kind in _ITEM_RESULTS:
            result = self._text_of(fields.get("output"), f"{path}.output")
            yield {"role": "tool", "content": result, "tool_call_id": _id(fields.get("call_id"))}
        elif kind == "reasoning" and "role" not in fields:
            parts = [*_list(fields.get("content")), *_list(fields.get("summary"))]
            thought = "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
            if not thought and fields.get("encrypted_content"):
                self.add_problem(RefusalReason.UNSUPPORTED, f"{path}: encrypted reasoning")
            yield {"role": "assistant", "content": "", "reasoning_content": thought, "continues": True}
        else:
            yield from self._read_message(fields, path)

    def _read_message(self, fields: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
        speaker = fields.get("role", fields.get("from", fields.get("type")))
        key = speaker.strip().lower() if isinstance(speaker, str) else ""
        role = ROLES.get(key, "")
        if not role:
            self.add_problem(RefusalReason.UNKNOWN_ROLE, f'{path}: "{str(speaker)[:40]}"')
            role = "user"
        for name, value in fields.items():
            if name not in _KNOWN and value not in (None, "", [], {}):
                self.unread[f"messages[].{name}"] = None
        for name in _MEDIA_KEYS:
            if fields.get(name):
                self.add_problem(RefusalReason.UNSUPPORTED, f"{path}: {name}")
        if str(fields.get("finish_reason")) in _LIMIT_REASONS:
            self.add_problem(RefusalReason.TRUNCATED, f"{path}: the answer ends at the token limit")
        content = fields.get("parts", fields.get("content", fields.get("value")))
        if role == "tool" and _is_tool(content) and not fields.get("tool_call_id"):
            self.tools.append(content)
            return
        if key in _CALL_ROLES and content:
            yield self._read_call_text(content, path)
            return
        yield from self._read_parts(fields, role, content, path)

    def _read_call_text(self, content: Any, path: str) -> dict[str, Any]:
        """Return a message whose text is the JSON of a call or of a list of calls."""
        thought, closing, text = content.rpartition("</think>") if isinstance(content, str) else ("", "", content)
        value = decode_text(text)
        if isinstance(value, str):
            self.add_problem(RefusalReason.ARGUMENTS, f"{path}: the call is not JSON")
            value = []
        calls = self._read_calls(value if isinstance(value, list) else [value], path)
        return {"role": "assistant", "content": f"{thought}{closing}", "tool_calls": calls, "continues": True}

    def _read_parts(self, fields: Mapping[str, Any], role: str, content: Any, path: str) -> Iterator[dict[str, Any]]:
        """Yield the results in a content as messages of tools, then the message of its other parts."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        malformed: list[str] = []
        results = 0
        if not isinstance(content, list | tuple) or (role == "tool" and not all(map(_is_part, content))):
            texts.append(self._text_of(content, path))
            content = ()
        for index, part in enumerate(content):
            place = f"{path}.parts[{index}]" if "parts" in fields else f"{path}.content[{index}]"
            if isinstance(part, str):
                part = {"type": "text", "text": part}
            kind = str(part.get("type")) if isinstance(part, Mapping) else _kind(part)
            if kind in _TEXT_PARTS:
                texts.append(self._text_of(part.get("text", part.get("content")), place))
            elif kind in _THOUGHT_PARTS:
                thoughts.append(str(part.get("content") or part.get("thinking") or part.get("reasoning") or ""))
            elif kind == "refusal":
                texts.append(self._text_of(part.get("refusal"), place))
            elif kind in _CALL_PARTS and role == "assistant":
                calls += self._read_calls([part], place)
            elif kind in _RESULT_PARTS:
                results += 1
                yield self._read_result(part, place)
            elif kind == "malformed_tool_call" and role == "assistant":
                malformed.append(str(part.get("content")))
            else:
                self.add_problem(RefusalReason.UNSUPPORTED, f"{place}: {_name_part(part, kind)}")
        text = "".join(texts)
        if results and not text:
            return
        message: dict[str, Any] = {"role": role, "content": text}
        message |= {name: fields[name] for name in (*MARKS, "masked") if fields.get(name) is not None}
        if role == "assistant":
            calls += self._read_other_calls(fields, path, has_calls=bool(calls))
            thoughts += [str(fields[name]) for name in _THOUGHT_KEYS if fields.get(name)]
            extra = fields.get("additional_kwargs")
            if isinstance(extra, Mapping) and extra.get("reasoning_content"):
                thoughts.append(str(extra["reasoning_content"]))
            if not text and fields.get("refusal"):
                message["content"] = self._text_of(fields["refusal"], path)
            malformed += list(map(str, _list(fields.get("malformed"))))
            named = {"tool_calls": calls, "malformed": malformed}
            message |= {name: value for name, value in named.items() if value}
            if thought := "\n".join(dict.fromkeys(filter(None, thoughts))):
                message["reasoning_content"] = thought
        if role == "tool":
            call_id = _id(fields.get("tool_call_id"))
            name = fields.get("name") or fields.get("tool_name")
            message |= {"tool_call_id": call_id} if call_id else {}
            message |= {"name": str(name)} if name else {}
        yield message

    def _read_result(self, part: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the message of a tool result in a content."""
        value = next((part[name] for name in ("response", "result", "content") if name in part), None)
        nested = [each for each in _list(value) if isinstance(each, Mapping) and each.get("type") == "text"]
        if nested and len(nested) == len(_list(value)):
            value = "".join(str(each.get("text", "")) for each in nested)
        call_id = _id(part.get("id") or part.get("tool_use_id"))
        return {"role": "tool", "content": self._text_of(value, path)} | ({"tool_call_id": call_id} if call_id else {})

    def _read_other_calls(self, fields: Mapping[str, Any], path: str, *, has_calls: bool) -> list[dict[str, Any]]:
        """Return the calls of a message of the assistant that are not content parts."""
        extra = fields.get("additional_kwargs")
        extra = extra if isinstance(extra, Mapping) else {}
        for call in _list(fields.get("invalid_tool_calls")):
            name = call.get("name") if isinstance(call, Mapping) else call
            self.add_problem(RefusalReason.ARGUMENTS, f"{path}: call of {name}")
        if has_calls:
            return []
        named = fields.get("tool_calls") or extra.get("tool_calls")
        single = fields.get("function_call") or extra.get("function_call")
        calls = decode_text(named or ([single] if single else []))
        return self._read_calls(calls if isinstance(calls, list) else [calls], path)

    def _read_calls(self, values: Sequence[Any], path: str) -> list[dict[str, Any]]:
        calls = []
        for index, value in enumerate(values):
            try:
                calls.append(_read_call(decode_text(value), f"{path}, call {index + 1}"))
            except TraceError as error:
                self.problem = self.problem or error.problem
        return calls

    def _text_of(self, value: Any, path: str) -> str:
        """Return a text, or the JSON of an object that is recorded instead."""
        if value is None:
            return ""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        self.check_text(text, path)
        return text

    def check_text(self, text: str, path: str) -> None:
        """Store a problem if a text ends with a mark of truncation."""
        if _CUT_OFF.search(text[-200:]):
            self.add_problem(RefusalReason.TRUNCATED, f"{path}: the text ends with a mark of truncation")


def _read_call(value: Any, path: str) -> dict[str, Any]:
    """Return a call in the OpenAI format.

    Raises:
        TraceError: The value is not a function call, or its arguments are not a JSON object.
    """
    if not isinstance(value, Mapping):
        raise TraceError(RefusalReason.ARGUMENTS, f"{path}: not a call but {_kind(value)}")
    kind = value.get("type")
    function = value.get("function", value)
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise TraceError(RefusalReason.UNSUPPORTED, f"{path}: a call without a name (type {kind})")
    if kind in ("custom", "custom_tool_call", "server_tool_use"):
        raise TraceError(RefusalReason.UNSUPPORTED, f"{path}: {kind} {name}")
    key = next((key for key in ("arguments", "args", "input", "parameters") if key in function), "arguments")
    arguments = function.get(key)
    if arguments is None or arguments == "":
        arguments = "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    try:
        parse_row_object(arguments)
    except ValueError as error:
        raise TraceError(RefusalReason.ARGUMENTS, f"{path}: {name}: {error}") from None
    return {"id": _id(value.get("id")), "type": "function", "function": {"name": name, "arguments": arguments}}


def _unwrap(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a message without the constructors of LangChain around them."""
    if isinstance(item.get("kwargs"), Mapping) and isinstance(item.get("id"), Sequence):
        fields = dict(item["kwargs"])
        name = str(item["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower() if item["id"] else ""
        kind = str(fields.get("type") or name).removesuffix("MessageChunk").lower()
        fields["role"] = fields.get("role") or kind
        return fields
    if isinstance(item.get("data"), Mapping) and str(item.get("type")).lower() in _LANGCHAIN_TYPES:
        return {"role": item["type"], **item["data"]}
    if "role" not in item and str(item.get("type")).lower() in _LANGCHAIN_TYPES and "content" in item:
        return {"role": item["type"], **item}
    if isinstance(item.get("message"), Mapping) and "role" not in item and "content" not in item:
        return {"finish_reason": item.get("finish_reason"), **_unwrap(item["message"])}
    return item


def read_tools(value: Any) -> list[Any] | None:
    """Return declarations of tools as a list; None if there are none.

    A mapping of names to declarations, a list of JSON texts, and the JSON of a list are accepted.

    Raises:
        TraceError: The value is not a list of declarations.
    """
    value = decode_text(value)
    if value in (None, "", [], {}):
        return None
    if isinstance(value, Mapping) and "name" not in value and "function" not in value:
        inner = {name: decode_text(each) for name, each in value.items()}
        value = [{"name": name, **each} for name, each in inner.items() if isinstance(each, Mapping)]
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TraceError(RefusalReason.MISSING_SCHEMA, f"a list of tools is expected, got {_kind(value)}")
    return [_read_tool(decode_text(each)) for each in value]


def _read_tool(tool: Any) -> dict[str, Any]:
    """Return a declaration in the OpenAI format.

    Raises:
        TraceError: The value is not the declaration of a function.
    """
    fields = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(fields, Mapping) or not isinstance(fields.get("name"), str):
        kind = tool.get("type") if isinstance(tool, Mapping) else _kind(tool)
        raise TraceError(RefusalReason.UNSUPPORTED, f"a tool without a name (type {kind})")
    key = next((key for key in ("parameters", "inputSchema", "input_schema") if fields.get(key)), "parameters")
    schema = decode_text(fields.get(key))
    declared = {"name": fields["name"], "description": str(fields.get("description") or "")}
    declared |= {"parameters": schema} if isinstance(schema, Mapping) else {}
    return {"type": "function", "function": declared}


def decode_text(value: Any) -> Any:
    """Parse a text that contains a JSON list or object; return any other value unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _is_tool(content: Any) -> bool:
    """Return whether the content of a message is the declaration of a tool."""
    if not isinstance(content, Mapping):
        return False
    return isinstance(content.get("function"), Mapping) or {"name", "parameters"} <= content.keys()


def _is_part(value: Any) -> bool:
    """Return whether an element of a list is a content part, and not a value that a tool returned."""
    return isinstance(value, Mapping) and value.get("type") in (*_TEXT_PARTS, *_RESULT_PARTS, *_MEDIA_PARTS)


def _join(before: dict[str, Any], message: Mapping[str, Any]) -> None:
    before["content"] = f"{before.get('content') or ''}{message.get('content') or ''}"
    if message.get("tool_calls"):
        if before.get("tool_calls"):
            before["is_joined"] = True
        before["tool_calls"] = [*before.get("tool_calls", ()), *message["tool_calls"]]
    if message.get("reasoning_content"):
        before["reasoning_content"] = message["reasoning_content"]


def _name_part(part: Any, kind: str) -> str:
    """Return the kind of a content part with its modality, such as `uri (image)`."""
    modality = part.get("modality") or part.get("mime_type") if isinstance(part, Mapping) else None
    return f"{kind} ({modality})" if modality else kind


def _id(value: Any) -> str:
    return "" if value is None else str(value)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def _kind(value: Any) -> str:
    return "null" if value is None else "a text" if isinstance(value, str) else type(value).__name__
