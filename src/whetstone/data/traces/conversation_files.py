"""Conversations in files with one conversation per row, or one message per row of a CSV file.

{"messages": […], "tools": […]}                                          OpenAI
{"conversations": [{"from": …, "value": …}], "system": …, "tools": …}    ShareGPT
conversation_id,role,content,tool_calls,tool_call_id                     CSV, one message per row
messages,tools                                                           CSV, one conversation per row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.data.dataset_formats import CONVERSATIONS, MARKS
from whetstone.data.logs import conversation_rows
from whetstone.data.traces.json_records import read_json_records
from whetstone.data.traces.message_shapes import MessageShapes, decode_text, read_tools
from whetstone.data.traces.records import ImportProblem, Record, RefusalReason, TraceError
from whetstone.errors import DataError, did_you_mean
from whetstone.tasks.readers import InvalidRow, Row, read_rows

CSV_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "conversation": ("conversation_id", "conversation", "session_id", "thread_id", "chat_id", "dialog_id", "trace_id"),
    "role": ("role", "from", "speaker", "sender", "author"),
    "content": ("content", "text", "message", "value", "body"),
    "tool_calls": ("tool_calls", "function_call"),
    "tool_call_id": ("tool_call_id",),
    "name": ("name", "tool_name"),
    "order": ("turn", "index", "message_index", "position", "step"),
    "tools": ("tools", "functions"),
    "system": ("system", "system_prompt"),
}
"""Meaning of a column in a file with one message per row → its usual names."""
_TOOLS = ("tools", "functions", "tool_defs")


def read_conversation_file(path: Path) -> Iterator[Record]:
    """Yield the conversations of a file with one conversation per row.

    Raises:
        DataError: The file cannot be read at all.
    """
    is_table = path.is_dir() or path.suffix in (".csv", ".tsv", ".parquet")
    for row in read_rows(path) if is_table else read_json_records(path):
        if isinstance(row, InvalidRow):
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, row.reason))
            continue
        try:
            rows = conversation_rows(row)
        except DataError as error:
            yield Record(
                row.where, problem=ImportProblem(RefusalReason.NO_MESSAGES, str(error).removeprefix(f"{row.where}  "))
            )
            continue
        yield from map(read_conversation_row, rows)


def read_conversation_row(row: Row) -> Record:
    """Read the conversation of a row; its first problem is stored in the record."""
    shapes = MessageShapes()
    columns = {name: value for name, value in row.columns.items() if value not in (None, "")}
    name = next((name for name in CONVERSATIONS if name in columns), None)
    messages: list[dict[str, Any]] = []
    if name is not None:
        messages = shapes.read(columns[name], name)
    elif {"prompt", "completion"} <= columns.keys():
        for column, role in (("prompt", "user"), ("completion", "assistant")):
            value = decode_text(columns[column])
            value = [{"role": role, "content": value}] if isinstance(value, str) else value
            read = shapes.read(value, column)
            messages += [{**each, "weight": 0} if role == "user" else each for each in read]
    else:
        near = did_you_mean("messages", columns)
        shapes.add_problem(
            RefusalReason.NO_MESSAGES, f"no column messages, conversations, or prompt and completion{near}"
        )
    messages = _with_system(messages, columns.get("system"))
    tools = _declared_tools(next((columns[name] for name in _TOOLS if columns.get(name)), None), shapes)
    for media in ("images", "image", "videos", "audios"):
        if columns.get(media) not in (None, [], ""):
            shapes.add_problem(RefusalReason.UNSUPPORTED, f"column {media}")
    used = {*CONVERSATIONS, "prompt", "completion", "system", *_TOOLS, *MARKS, "masked", "mask"}
    unread = [*(name for name in columns if name not in used), *shapes.unread]
    marks = {name: columns[name] for name in (*MARKS, "masked", "mask") if name in columns}
    return Record(row.where, messages, tools or shapes.tools or None, shapes.problem, marks=marks, unread=unread)


def find_columns(header: Sequence[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each meaning in a CSV file with one message per row.

    Args:
        header: Columns of the file.
        renamed: Meaning → column, as the user specifies it.

    Raises:
        DataError: A specified column does not exist, or there is no column for the role, content or conversation.
    """
    for meaning, name in renamed.items():
        if meaning not in CSV_COLUMNS:
            raise DataError(
                f"--column {meaning}={name}: unknown meaning {meaning!r}; use one of {', '.join(CSV_COLUMNS)}"
            )
        if name not in header:
            raise DataError(f'--column {meaning}={name}: no column "{name}"{did_you_mean(name, header)}')
    lower = {name.strip().lower(): name for name in reversed(header)}
    usual = {
        meaning: next((lower[name] for name in names if name in lower), "") for meaning, names in CSV_COLUMNS.items()
    }
    columns = {meaning: name for meaning, name in {**usual, **renamed}.items() if name}
    for meaning in ("conversation", "role", "content"):
        if meaning not in columns:
            names = ", ".join(CSV_COLUMNS[meaning])
            raise DataError(
                f"no column for the {meaning}: its usual names are {names}; this file has {', '.join(header)}; "
                f"name it with `--column {meaning}=NAME`"
            )
    return columns


def read_csv_messages(
    path: Path, renamed: Mapping[str, str], roles: Mapping[str, str] | None = None
) -> Iterator[Record]:
    """Yield the conversations of a CSV file with one message per row, each when its last row is read.

    Args:
        path: The file.
        renamed: Meaning → column, as the user specifies it.
        roles: Value of the column of the role → role, as the user specifies it.

    Raises:
        DataError: The file cannot be read at all, or a column is missing.
    """
    columns: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row in read_rows(path):
        if isinstance(row, Row):
            columns = columns or find_columns(list(row.columns), renamed)
            counts[row.columns[columns["conversation"]]] += 1
    rows: dict[str, list[Row]] = {}
    for row in read_rows(path):
        if isinstance(row, InvalidRow):
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, row.reason))
            continue
        key = row.columns[columns["conversation"]]
        rows.setdefault(key, []).append(row)
        counts[key] -= 1
        if not counts[key]:
            yield _read_csv_rows(key, rows.pop(key), columns, roles or {})


def _read_csv_rows(key: str, rows: Sequence[Row], columns: Mapping[str, str], roles: Mapping[str, str]) -> Record:
    order = columns.get("order")
    if order and all(_is_number(row.columns[order]) for row in rows):
        rows = sorted(rows, key=lambda row: float(row.columns[order]))
    read = ("role", "content", "tool_calls", "tool_call_id", "name")
    messages = [
        {meaning: row.columns[columns[meaning]] or None for meaning in read if meaning in columns} for row in rows
    ]
    known = {*columns.values(), *MARKS, "masked"}
    for message, row in zip(messages, rows, strict=True):
        message |= {name: row.columns[name] for name in (*MARKS, "masked") if row.columns.get(name)}
        message["role"] = roles.get(message["role"] or "", message["role"])
    shapes = MessageShapes()
    first = rows[0].columns
    read_messages = _with_system(shapes.read(messages, "rows"), first.get(columns.get("system", "")))
    tools = _declared_tools(first.get(columns.get("tools", "")), shapes)
    unread = [name for name in rows[0].columns if name not in known and any(row.columns[name] for row in rows)]
    where = f"{rows[0].where} conversation {key}"
    return Record(where, read_messages, tools, shapes.problem, unread=unread)


def _with_system(messages: list[dict[str, Any]], system: Any) -> list[dict[str, Any]]:
    """Return messages with the text of a `system` column as the first message, unless they have a system message."""
    if isinstance(system, str) and system.strip() and (not messages or messages[0]["role"] != "system"):
        return [{"role": "system", "content": system}, *messages]
    return messages


def _declared_tools(value: Any, shapes: MessageShapes) -> list[dict[str, Any]] | None:
    """Return the tools that a column declares; if they cannot be read, store the problem and return None."""
    try:
        return read_tools(value)
    except TraceError as error:
        shapes.problem = shapes.problem or error.problem
        return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
