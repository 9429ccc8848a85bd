"""Trace formats by name, and the detection of the format of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from whetstone.data.dataset_formats import CONVERSATIONS
from whetstone.data.traces.conversation_files import CSV_COLUMNS, read_conversation_file, read_csv_messages
from whetstone.data.traces.json_records import read_json_records
from whetstone.data.traces.langfuse import read_langfuse
from whetstone.data.traces.langsmith import read_langsmith
from whetstone.data.traces.otel_spans import is_proto, read_otel
from whetstone.data.traces.records import Record
from whetstone.errors import DataError
from whetstone.tasks.readers import Row, read_rows

_TRIED = 50
"""Maximum number of rows that are read to detect a format."""
_TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Format of trace files with its reader."""

    name: str
    """Value of `--from`."""
    title: str
    """Description in the report of an import."""
    read: Callable[[Path], Iterator[Record]]
    """Yields the records of a file."""
    has_calls: bool = False
    """Whether a record is a model call, which repeats the messages of the calls before it."""


FORMATS: Mapping[str, TraceFormat] = {
    each.name: each
    for each in (
        TraceFormat("otel", "OpenTelemetry spans", read_otel, has_calls=True),
        TraceFormat("langfuse", "a Langfuse export", read_langfuse, has_calls=True),
        TraceFormat("langsmith", "a LangSmith export", read_langsmith, has_calls=True),
        TraceFormat("openai", "conversations of OpenAI", read_conversation_file),
        TraceFormat("sharegpt", "conversations of ShareGPT", read_conversation_file),
        TraceFormat("hermes", "conversations with calls in the text (Hermes)", read_conversation_file),
        TraceFormat("csv", "a table", read_conversation_file),
    )
}
"""Value of `--from` → format."""


def find_format(
    path: Path,
    name: str = "auto",
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
) -> TraceFormat:
    """Find the format and reader of a trace file.

    Args:
        path: The file.
        name: Name of the format; `auto`: it is detected.
        columns: Meaning → column of a CSV file with one message per row, as the user specifies it.
        roles: Value of its column of the role → role, as the user specifies it.

    Raises:
        DataError: The file does not exist, or its format is not recognized.
    """
    detected = detect_format(path) if name == "auto" else name
    if detected == "csv":
        header = set(_header(path))
        if columns or roles or not header & {*CONVERSATIONS, "messages", "prompt"}:
            return TraceFormat(
                "csv",
                "a table with one message per row",
                partial(read_csv_messages, renamed=columns or {}, roles=roles),
            )
        return TraceFormat("csv", "a table with one conversation per row", read_conversation_file)
    if detected not in FORMATS:
        raise DataError(f"{path}: {detected}; name the format with `--from` ({', '.join(FORMATS)})")
    return FORMATS[detected]


def detect_format(path: Path) -> str:
    """Detect the format of a file from its suffix and first rows.

    Returns:
        Name of the format; otherwise the reason why no format is recognized.

    Raises:
        DataError: The file does not exist, or cannot be read at all.
    """
    if path.is_file() and path.suffix not in _TABLES and is_proto(path):
        return "otel"
    is_table = path.is_dir() or path.suffix in _TABLES
    rows = read_rows(path) if is_table else read_json_records(path)
    readable = [row for row in islice(rows, _TRIED) if isinstance(row, Row)]
    names = [name for row in readable if (name := _format_of(row.columns))]
    if "hermes" in names and names[0] in ("openai", "sharegpt"):
        return "hermes"
    if names and not (is_table and names[0] in ("openai", "sharegpt")):
        return names[0]
    if path.suffix in (".csv", ".tsv"):
        return "csv"
    if names:
        return names[0]
    if not readable:
        return "no row can be read"
    keys = ", ".join(list(readable[0].columns)[:8])
    return f"unknown format, with the keys {keys}"


def _format_of(columns: Mapping[str, Any]) -> str:
    """Return the format that the keys of a row have, or an empty string."""
    keys = columns.keys()
    if keys & {"resourceSpans", "resource_spans", "resourceLogs", "resource_logs"}:
        return "otel"
    if "attributes" in keys and (keys & {"spanId", "span_id"} or isinstance(columns.get("context"), Mapping)):
        return "otel"
    if keys & {"run_type", "dotted_order"} or isinstance(columns.get("runs"), list):
        return "langsmith"
    if "observations" in keys:
        return "langfuse"
    if keys >= {"input", "output"} and keys & {
        "traceId",
        "trace_id",
        "timestamp",
        "startTime",
        "start_time",
        "sessionId",
    }:
        return "langfuse"
    if keys >= {"inputs", "outputs"} and keys & {"trace_id", "session_id", "id", "start_time"}:
        return "langsmith"
    name = next((name for name in CONVERSATIONS if name in keys), None)
    if name is not None:
        if "<tool_call>" in str(columns[name]):
            return "hermes"
        return "openai" if name == "messages" else "sharegpt"
    if keys >= {"prompt", "completion"} or keys >= {"request", "response"}:
        return "openai"
    return ""


def _header(path: Path) -> list[str]:
    row = next((row for row in read_rows(path) if isinstance(row, Row)), None)
    return list(row.columns) if row is not None else list(CSV_COLUMNS)
