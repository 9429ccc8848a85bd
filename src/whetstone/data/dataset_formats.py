"""Dataset formats: reads rows of every format into messages of one normal form.

    {"messages": [{"role": "user", "content": …}, …], "tools": […]}                     OpenAI
    {"conversations": [{"from": "human", "value": …}, …], "system": …, "tools": …}      ShareGPT
    {"prompt": …, "completion": …}                                                      texts, or lists of messages
    {"prompt": …, "chosen": …, "rejected": …}                                           pairs
    {"prompt": …, "completion": …, "label": true}                                       rated singles

A field has the same meaning in every format: each list of messages takes the keys of OpenAI and of ShareGPT, and each
row takes `system`, `tools` and the marks in `MARKS`. Columns and lists can be JSON in a text, as in many tables.

Note:
    A null means "absent" everywhere except in the arguments of a call and in the values of a tool's schema. The reader
    of a file removes the nulls with which tables pad their structs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from whetstone.chat import Image, Message, Text, ToolSpec
from whetstone.data.row_fields import CallReader, FieldReader, is_empty, read_id, without_index
from whetstone.data.row_readers import Row
from whetstone.errors import DataError, did_you_mean

ROLES: Mapping[str, str] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant",
    "chatgpt": "assistant", "function_call": "assistant", "tool_call": "assistant", "tool_calls": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
    "function_result": "tool", "tool_response": "tool", "tool_result": "tool",
}  # fmt: skip
"""Name of a role in lower case → role of a message."""
MARKS = (
    "weight", "loss", "loss_weight", "loss_mask", "loss_scale", "step_loss_mask", "train", "training", "trainable",
    "train_on_turn",
)  # fmt: skip
"""Keys of a message or a row that exclude it from training if they are false or 0."""
CONVERSATIONS = ("messages", "conversations", "conversation")
"""Columns with a whole conversation; the first one of a row is read."""
_CALL_ROLES = ("function_call", "tool_call", "tool_calls")
_TOOLS = ("tools", "functions", "tool_defs")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_MEDIA = ("images", "image", "videos", "video", "audios", "audio")
_TOKEN_MARKS = ("assistant_masks", "assistant_mask", "completion_mask", "train_detail")
_OTHER_MARKS = ("masked", "mask", *_TOKEN_MARKS)
_FIELDS = ("role", "from", "content", "value", *MARKS, *_OTHER_MARKS, *_MEDIA)
_FIELDS_OF: Mapping[str, tuple[str, ...]] = {
    "assistant": ("tool_calls", "function_call", "malformed", *_THOUGHTS),
    "tool": ("tool_call_id", "name", "tool_name"),
}
_COLUMNS = (*CONVERSATIONS, "prompt", "completion", "chosen", "rejected", "label", "text", "system", *_TOOLS)
_NEAR = (*_COLUMNS, *_FIELDS, *(key for keys in _FIELDS_OF.values() for key in keys))
_FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True, slots=True)
class NormalMessage:
    """One message of a row in the form that all dataset formats are converted to."""

    path: str
    """Place in the row, such as `messages[2]`."""
    message: Message
    """The message, with the call ids of the row."""
    name: str = ""
    """Name of the tool of a tool result; empty if the row has none."""
    mark: bool | None = None
    """Whether marks (`weight`, `train`, …) of the message include it in training; None without marks."""
    reason: str = ""
    """The mark that excludes the message from training, such as `weight: 0`."""
    is_context: bool = False
    """Whether the message is part of a prompt, which is never trained."""
    is_call: bool = False
    """Whether the role names a tool call, such as `function_call` in ShareGPT."""


class RowReader:
    """Reads the columns of one row in any dataset format, and collects the columns and keys that nothing reads.

    Args:
        row: The row.
        used: Columns that another reader uses, such as the reward of a log.
    """

    def __init__(self, row: Row, used: Collection[str] = ()) -> None:
        self.row = row
        self.columns = {name: value for name, value in row.columns.items() if value is not None}
        self._used = {*used, *MARKS, *_OTHER_MARKS, *_MEDIA}
        self._fields = FieldReader(row)
        self._calls = CallReader(self._fields)
        self._messages = _MessageReader(self._fields, self._calls)
        for name in _MEDIA:
            if not is_empty(value := self.columns.get(name)):
                if not isinstance(value, str):
                    raise _media_error(row, name)
                self._used.discard(name)
        self.mark, self.reason = self._messages.read_marks("", self.columns)

    def read_conversation(self) -> list[NormalMessage]:
        """Read the conversation of the row, from `messages`, `conversations`, or `prompt` and `completion`.

        Raises:
            DataError: The row has no conversation, or a message cannot be read.
        """
        name = next((name for name in CONVERSATIONS if name in self.columns), None)
        if name is not None:
            return self.add_system_message(self.read_messages(name))
        if {"prompt", "completion"} <= self.row.columns.keys():
            prompt = self.read_messages("prompt", role="user", is_context=True)
            return self.add_system_message([*prompt, *self.read_messages("completion", role="assistant")])
        near = did_you_mean("messages", self.columns)
        raise self.row.error(
            f'no conversation: the columns "messages", "conversations", or "prompt" and "completion" are needed{near}'
        )

    def read_messages(self, name: str, *, role: str = "", is_context: bool = False) -> list[NormalMessage]:
        """Read a column of messages.

        Args:
            name: Name of the column.
            role: Role of the message if the column is a plain text; a null column is an empty message of the
                assistant if this is `assistant`. If empty, a text is parsed as JSON.
            is_context: Whether the column is part of a prompt.

        Raises:
            DataError: The column has no messages.
        """
        self._used.add(name)
        value = self.columns.get(name, [{"role": role}] if role == "assistant" else ())
        if isinstance(value, str):
            value = (
                [{"role": role, "content": value}]
                if role and not _is_encoded(value)
                else self._fields.decode(name, value)
            )
        if isinstance(value, Mapping):  # a single message, or a table's columns of messages
            value = _transpose(value) if all(isinstance(column, list) for column in value.values()) else [value]
        if not isinstance(value, Sequence):
            raise self.row.error(f"{name}: a list of messages is expected, got {type(value).__name__}")
        read: list[NormalMessage] = []
        for index, fields in enumerate(value):
            message = self._messages.read(f"{name}[{index}]", fields, is_context)
            if message.is_call and read and _can_join(read[-1], message):
                message = _join(read.pop(), message)
            read.append(message)
        return read

    def add_system_message(self, messages: Sequence[NormalMessage]) -> list[NormalMessage]:
        """Return the messages with the text of the column `system` as their first message, if the row has one.

        Raises:
            DataError: The column is not a text, or differs from a system message at the start of the messages.
        """
        self._used.add("system")
        text = self.columns.get("system", "")
        if not isinstance(text, str):
            raise self.row.error(f"system: text is expected, got {type(text).__name__}")
        if not text.strip():
            return list(messages)
        if messages and messages[0].message.role == "system":
            if messages[0].message.text.strip() != text.strip():
                raise self.row.error(f"system: differs from the system message {messages[0].path}; remove one of them")
            return list(messages)
        return [NormalMessage("system", Message("system", (Text(text),))), *messages]

    def read_label(self) -> bool:
        """Read the rating of an answer (column `label`) as true or false.

        Raises:
            DataError: The column is neither a boolean nor 0, 1 or one of their texts.
        """
        self._used.add("label")
        if (label := _parse_flag(self.columns["label"])) is None:
            raise self.row.error(f"label: true or false is expected, got {self.columns['label']!r}")
        return label

    def read_tools(self, offered: tuple[ToolSpec, ...] = ()) -> tuple[ToolSpec, ...]:
        """Read the tools that the row declares.

        Args:
            offered: Tools of a row without a declaration; an empty list is a declaration.

        Raises:
            DataError: A declaration cannot be read, or two columns declare tools.
        """
        declared = {name: self.columns[name] for name in _TOOLS if self.columns.get(name) not in (None, "")}
        self._used |= set(_TOOLS)
        filled = [name for name, value in declared.items() if value] or list(declared)
        if not filled:
            return offered
        if len(filled) > 1 and declared[filled[0]]:
            raise self.row.error(f"{filled[0]} and {filled[1]} both declare tools; remove one of them")
        name = filled[0]
        tools = self._fields.decode(name, declared[name])
        if isinstance(tools, Mapping):
            tools = [tools]
        if not isinstance(tools, Sequence):
            raise self.row.error(f"{name}: a list of tools is expected, got {type(tools).__name__}")
        return tuple(self._calls.read_tool(f"{name}[{index}]", tool) for index, tool in enumerate(tools))

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the columns and keys with a value that no reader used, such as `source` or `messages[].mood`."""
        columns = (name for name, value in self.columns.items() if name not in self._used and not is_empty(value))
        return (*columns, *self._fields.unread)


class _MessageReader:
    """Reads the messages of a row into the normal form.

    Args:
        fields: Reader of the objects of the row.
        calls: Reader of the tool calls of the row.
    """

    def __init__(self, fields: FieldReader, calls: CallReader) -> None:
        self._fields, self._calls = fields, calls

    def read(self, path: str, value: Any, is_context: bool) -> NormalMessage:
        """Read one message of a list.

        Raises:
            DataError: The message cannot be read.
        """
        fields = self._fields.read_object(path, value)
        speaker = self._fields.read_either(path, fields, "role", "from")
        key = speaker.strip().lower() if isinstance(speaker, str) else ""
        if key not in ROLES:
            near = did_you_mean(key, ROLES)
            raise self._fields.row.error(f'{path}: no role is named "{str(speaker)[:80]}"{near}')
        role, content = ROLES[key], self._fields.read_either(path, fields, "content", "value")
        self._refuse_media(path, fields)
        mark, reason = self.read_marks(path, fields)
        if role != "assistant" and mark:
            self._fields.unread[f"{without_index(path)}.{reason} ({role})"] = None
        calls: list[dict[str, Any]] = []
        if key in _CALL_ROLES:
            thought, closing, text = content.rpartition("</think>") if isinstance(content, str) else ("", "", content)
            calls = self._calls.read_calls(f"{path}.value" if "value" in fields else f"{path}.content", text)
            content = f"{thought}{closing}"
        elif role == "assistant":
            calls = self._calls.read_calls(f"{path}.tool_calls", fields.get("tool_calls"))
            legacy = self._calls.read_calls(f"{path}.function_call", fields.get("function_call"))
            if calls and legacy and [call["function"] for call in calls] != [call["function"] for call in legacy]:
                raise self._fields.row.error(f"{path}: function_call and tool_calls differ; remove function_call")
            calls = calls or legacy
        parts, thoughts = self._read_content(path, content)
        known = [*_FIELDS, *_FIELDS_OF.get(role, ())]
        if role == "assistant":
            thoughts += [fields[name] for name in _THOUGHTS if not is_empty(fields.get(name))]
            if not _has_content(parts) and not is_empty(fields.get("refusal")):
                parts = [{"type": "text", "text": fields["refusal"]}]
                known.append("refusal")
            parts = self._add_thought(path, thoughts, parts)
        self._fields.record_unread_keys(path, fields, known)
        written: dict[str, Any] = {"role": role, "content": parts, "tool_calls": calls}
        if role == "tool":
            written["tool_call_id"] = read_id(fields.get("tool_call_id")) or None
        if role == "assistant":
            written["malformed"] = fields.get("malformed")
        try:
            message = Message.from_openai(written)
        except ValueError as error:
            raise self._fields.row.error(f"{path}: {error}") from None
        name = str(fields.get("name") or fields.get("tool_name") or "") if role == "tool" else ""
        return NormalMessage(path, message, name, mark, reason, is_context, key in _CALL_ROLES)

    def _read_content(self, path: str, content: Any) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return (parts of a content in the OpenAI format, texts of thinking in the content)."""
        if content is None or content == "":
            return [], []
        if isinstance(content, str):
            return [{"type": "text", "text": content}], []
        if not isinstance(content, Sequence):
            raise self._fields.row.error(f"{path}: text is expected as content, got {type(content).__name__}")
        parts: list[dict[str, Any]] = []
        thoughts: list[Any] = []
        for index, value in enumerate(content):
            part = {"type": "text", "text": value} if isinstance(value, str) else value
            part = self._fields.read_object(f"{path}.content[{index}]", part)
            kind = part.get("type")
            self._fields.record_unread_keys(f"{path}.content[{index}]", part, ("type", str(kind)))
            if kind == "thinking":
                thoughts.append(part.get("thinking"))
            elif kind not in ("text", "refusal"):
                parts.append(part)
            elif kind in part:  # otherwise its text is null
                parts.append({"type": "text", "text": part[kind]})
        return parts, thoughts

    def _add_thought(self, path: str, thoughts: Sequence[Any], parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the parts of a message with its thinking as a text part, in `<think>` tags, before them."""
        if not all(isinstance(thought, str) for thought in thoughts):
            raise self._fields.row.error(f"{path}: text is expected as reasoning")
        different = {thought.strip() for thought in thoughts} - {""}
        if len(different) > 1:
            raise self._fields.row.error(f"{path}: {len(different)} different texts of reasoning; keep one of them")
        first = str(parts[0].get("text")) if parts and parts[0].get("type") == "text" else ""
        if not different or ("</think>" in first and next(iter(different)) in first):  # the content repeats it
            return parts
        thought = next(thought for thought in thoughts if thought.strip())
        text = {"type": "text", "text": f"<think>\n{thought}\n</think>\n\n{first}"}
        return [text, *(parts[1:] if first else parts)]

    def read_marks(self, path: str, fields: Mapping[str, Any]) -> tuple[bool | None, str]:
        """Return whether marks include a message or the row, and the mark that decides."""
        prefix = f"{path}." if path else ""
        for name in _TOKEN_MARKS:
            if not is_empty(fields.get(name)):
                raise self._fields.row.error(
                    f"{prefix}{name}: marks of tokens are not read; mark whole messages (`train: false`)"
                )
        fields = {name: value for name, value in fields.items() if value != ""}  # an empty field of a CSV file
        marks = {name: self._read_flag(f"{prefix}{name}", fields[name]) for name in MARKS if name in fields}
        if "masked" in fields:
            marks["masked"] = not self._read_flag(f"{prefix}masked", fields["masked"])
        if "mask" in fields:  # NeMo: the role that is not trained
            role = ROLES.get(str(fields["mask"]).lower())
            if role is None:
                raise self._fields.row.error(
                    f"{prefix}mask: can mean included or excluded; write `train: true` or `train: false`"
                )
            if role == "assistant":
                marks["mask"] = False
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        reasons = {included: f"{name}: {texts[name]}" for name, included in reversed(marks.items())}
        if len(reasons) == 2:
            place = f"{path}: " if path else ""
            raise self._fields.row.error(f"{place}the marks {reasons[True]} and {reasons[False]} contradict each other")
        return next(iter(reasons.items()), (None, ""))

    def _read_flag(self, path: str, value: Any) -> bool:
        if (flag := _parse_flag(value)) is not None:
            return flag
        raise self._fields.row.error(
            f"{path}: a mark is true, false, 1 or 0, got {str(value)[:40]!r}; rename the key otherwise"
        )

    def _refuse_media(self, path: str, fields: Mapping[str, Any]) -> None:
        for name in _MEDIA:
            if not is_empty(fields.get(name)):
                raise _media_error(self._fields.row, f"{path}.{name}")


def _media_error(row: Row, place: str) -> DataError:
    return row.error(f"{place}: media are read from content parts of the type image_url only")


def has_answer(message: Message) -> bool:
    """Return whether a message has a call, an image, or text other than thoughts."""
    return bool(
        message.tool_calls
        or any(isinstance(part, Image) for part in message.content)
        or message.text.rpartition("</think>")[2].strip()
    )


def suggest_key(unread: str) -> str:
    """Return the known key with a spelling similar to an unread key; empty if there is none.

    >>> suggest_key("messages[].wieght"), suggest_key("source")
    ('weight', '')
    """
    name = unread.rpartition(".")[2].partition(":")[0]
    return next(iter(get_close_matches(name, set(_NEAR) - {name}, n=1, cutoff=0.82)), "")


def _has_content(parts: Sequence[Mapping[str, Any]]) -> bool:
    return any(part.get("type") != "text" or str(part.get("text")).strip() for part in parts)


def _parse_flag(value: Any) -> bool | None:
    """Return true or false, also from 1 and 0 and from texts as in CSV; None for any other value."""
    if isinstance(value, str):
        value = _FLAGS.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _is_encoded(text: str) -> bool:
    """Return whether a text is the JSON of a list of messages."""
    if not text.lstrip().startswith("["):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value) and all(isinstance(each, Mapping) and ("role" in each or "from" in each) for each in value)


def _transpose(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Convert an object of lists, as Parquet stores messages, into a list of objects."""
    length = max(map(len, columns.values()), default=0)
    return [{name: values[k] for name, values in columns.items() if k < len(values)} for k in range(length)]


def _can_join(before: NormalMessage, call: NormalMessage) -> bool:
    """Return whether a message of calls continues the turn before it."""
    return before.message.role == "assistant" and (before.mark, before.reason) == (call.mark, call.reason)


def _join(before: NormalMessage, call: NormalMessage) -> NormalMessage:
    message = before.message
    content, calls = (*message.content, *call.message.content), (*message.tool_calls, *call.message.tool_calls)
    return replace(before, message=replace(message, content=content, tool_calls=calls))
