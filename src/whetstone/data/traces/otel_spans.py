"""Model calls in files of OpenTelemetry: OTLP as JSON lines, JSON or protobuf, spans of the SDK, and log records.

A file has the objects `{"resourceSpans": …}` or `{"resourceLogs": …}`, as the file exporter of the collector writes
them, or one span per object, as `span.to_json()` of the SDK does. A file of the binary format is a message
`ExportTraceServiceRequest`, or several of them, each after its length in four bytes.

Note:
    The SDK drops attributes beyond a limit (128 by default). A call with dropped attributes is truncated.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.data.traces.json_records import MAX_OBJECT_BYTES, read_json_records
from whetstone.data.traces.records import ImportProblem, Record, RefusalReason, TraceError
from whetstone.data.traces.span_attributes import CallContent, EventMessages, find_content
from whetstone.errors import DataError
from whetstone.tasks.readers import InvalidRow, Row

_CALLS = ("chat", "text_completion", "generate_content")
_AGENTS = ("invoke_agent", "invoke_workflow")
_SESSIONS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
)
_MAX_WAITING = 10_000
"""Maximum number of spans whose log records are held until the answer is read."""
_MAX_DEPTH = 64


def read_otel(path: Path) -> Iterator[Record]:
    """Yield one record per span of a file, with messages from its attributes, events or log records.

    Raises:
        DataError: The file cannot be read at all.
    """
    waiting: OrderedDict[tuple[str, str], _LoggedCall] = OrderedDict()
    rows = read_proto_rows(path) if is_proto(path) else read_json_records(path)
    for row in rows:
        if isinstance(row, InvalidRow):
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, row.reason))
            continue
        try:
            yield from _read_row(row, waiting)
        except (AttributeError, TypeError, RecursionError) as error:
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, f"not OTLP: {error}"))
    for call in waiting.values():
        yield from call.finish()


def _read_row(row: Row, waiting: OrderedDict[tuple[str, str], _LoggedCall]) -> Iterator[Record]:
    columns = row.columns
    resources = _either(columns, "resourceSpans", "resource_spans")
    logs = _either(columns, "resourceLogs", "resource_logs")
    if resources is None and logs is None:
        context = columns.get("context")
        if isinstance(context, Mapping) and isinstance(columns.get("attributes"), Mapping):
            yield from _read_span(
                row.where, {**columns, "spanId": context.get("span_id"), "traceId": context.get("trace_id")}
            )
        elif "spanId" in columns or "span_id" in columns:
            yield from _read_span(row.where, columns)
        else:
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, "neither resourceSpans nor a span"))
        return
    for resource in resources or ():
        for scope in _either(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                yield from _read_span(row.where, span)
    for resource in logs or ():
        for scope in _either(resource, "scopeLogs", "scope_logs") or ():
            for log in _either(scope, "logRecords", "log_records") or ():
                yield from _read_log(row.where, log, waiting)


def _read_span(where: str, span: Mapping[str, Any]) -> Iterator[Record]:
    where = f"{where} span {_either(span, 'spanId', 'span_id')}"
    trace = str(_either(span, "traceId", "trace_id") or "")
    attributes = decode_attributes(span.get("attributes"))
    group = next((str(attributes[name]) for name in _SESSIONS if attributes.get(name)), trace)
    operation = attributes.get("gen_ai.operation.name")
    kind = str(attributes.get("openinference.span.kind") or attributes.get("traceloop.span.kind") or operation or "")
    is_agent = operation in _AGENTS
    is_call = operation in _CALLS or kind == "LLM" or attributes.get("llm.request.type") in ("chat", "completion")
    if not is_call and not is_agent and (operation is not None or kind):
        yield Record(where, other=f"{kind} span")
        return
    events = [
        (str(event.get("name")), decode_attributes(event.get("attributes"))) for event in span.get("events") or ()
    ]
    try:
        content = find_content(attributes, events)
    except TraceError as error:
        yield Record(where, problem=error.problem, group=group, is_fallback=is_agent)
        return
    if content is None:
        if is_call:
            yield Record(
                where, problem=ImportProblem(RefusalReason.NO_MESSAGES, "the call has no content"), group=group
            )
        else:
            yield Record(where, other=f"{kind} span" if kind else "span without messages")
        return
    dropped = _either(span, "droppedAttributesCount", "dropped_attributes_count") or 0
    for messages, tools, problem in content.read(is_sequence=is_agent):
        if dropped:
            problem = ImportProblem(RefusalReason.TRUNCATED, f"{dropped} attributes were dropped")
        yield Record(where, messages, tools, problem, group, is_agent)


class _LoggedCall:
    """Messages of one model call that is recorded as log records instead of span attributes."""

    def __init__(self, where: str, group: str) -> None:
        self.where, self.group = where, group
        self.messages = EventMessages()
        self.has_answer = False

    def answer(self, where: str) -> Iterator[Record]:
        """Yield the record of the call after a choice was added to its log records."""
        self.has_answer = True
        for messages, tools, problem in CallContent(self.messages.inputs, self.messages.outputs[-1:]).read():
            yield Record(where, messages, tools, problem, self.group)

    def finish(self) -> Iterator[Record]:
        """Yield the record of the call if its answer was never logged; called at the end of the file."""
        if not self.has_answer:
            for messages, tools, problem in CallContent(self.messages.inputs).read():
                yield Record(self.where, messages, tools, problem, self.group)


def _read_log(
    where: str, log: Mapping[str, Any], waiting: OrderedDict[tuple[str, str], _LoggedCall]
) -> Iterator[Record]:
    trace, span = str(_either(log, "traceId", "trace_id") or ""), str(_either(log, "spanId", "span_id") or "")
    where = f"{where} span {span}"
    attributes = decode_attributes(log.get("attributes"))
    name = str(_either(log, "eventName", "event_name") or attributes.get("event.name"))
    body = decode_value(log.get("body"))
    fields = {**attributes, **(body if isinstance(body, Mapping) else {})}
    if fields.get("gen_ai.input.messages") or fields.get("gen_ai.output.messages"):
        yield from _read_span(where.partition(" span ")[0], {**log, "attributes": fields})
        return
    call = waiting.get((trace, span)) or _LoggedCall(where, trace)
    if not call.messages.add(name, fields):
        yield Record(where, other=f"{name} log record")
        return
    waiting[trace, span] = call
    waiting.move_to_end((trace, span))
    if name in ("gen_ai.choice", "gen_ai.content.completion"):
        yield from call.answer(where)
    if len(waiting) > _MAX_WAITING:
        _, oldest = waiting.popitem(last=False)
        yield from oldest.finish()


def decode_attributes(value: Any) -> dict[str, Any]:
    """Return attributes as a mapping, from a list of OTLP key-value pairs or from a mapping."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return {str(pair.get("key")): decode_value(pair.get("value")) for pair in value or ()}


def decode_value(value: Any, depth: int = 0) -> Any:
    """Convert an OTLP `AnyValue` into a plain value; a value without a type is unchanged."""
    if not isinstance(value, Mapping) or len(value) != 1 or depth > _MAX_DEPTH:
        return value
    ((kind, inner),) = value.items()
    kind = kind.replace("_value", "Value")
    if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        return inner
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return [decode_value(each, depth + 1) for each in inner.get("values") or ()]
    if kind == "kvlistValue":
        return {str(pair.get("key")): decode_value(pair.get("value"), depth + 1) for pair in inner.get("values") or ()}
    return value


def _either(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


# ------------------------------------------------------------ protobuf


def is_proto(path: Path) -> bool:
    """Return whether a file is OTLP in the binary format, by its suffix or first bytes."""
    if path.suffix in (".pb", ".binpb", ".otlp", ".proto", ".bin"):
        return True
    with open(path, "rb") as file:
        first = file.read(6)
    is_json = first.strip().startswith((b"{", b"["))
    return first[:1] == b"\0" or (first[:1] == b"\n" and bool(first.strip()) and not is_json)


def read_proto_rows(path: Path) -> Iterator[Row | InvalidRow]:
    """Yield the messages of a file in the binary format as objects of OTLP/JSON.

    Raises:
        DataError: `opentelemetry-proto` is not installed, or the file cannot be opened.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
    except ImportError:
        raise DataError(f"{path}: the binary format needs `pip install opentelemetry-proto`") from None
    for number, content in enumerate(_split_messages(path), start=1):
        where = f"{path}, message {number}"
        try:
            spans = MessageToDict(TracesData.FromString(content))
            columns = spans if _has_spans(spans) else MessageToDict(LogsData.FromString(content))
        except (DecodeError, ValueError, RecursionError) as error:
            yield InvalidRow(where, f"not OTLP: {error}")
            continue
        yield Row(where, _with_hex_ids(columns), number)


def _has_spans(columns: Mapping[str, Any]) -> bool:
    return any(scope.get("spans") for each in columns.get("resourceSpans", ()) for scope in each.get("scopeSpans", ()))


def _split_messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file: one, or several that each follow their length in four bytes."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(4)
        if not 0 < int.from_bytes(first, "big") <= size - 4:
            if size > MAX_OBJECT_BYTES:
                raise DataError(f"{path}: one message of more than {MAX_OBJECT_BYTES >> 20} MiB")
            yield first + file.read()
            return
        while first:
            yield file.read(min(int.from_bytes(first, "big"), MAX_OBJECT_BYTES))
            first = file.read(4)


def _with_hex_ids(value: Any) -> Any:
    """Return an object with the ids of spans in hexadecimal digits, as OTLP/JSON writes them."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_with_hex_ids(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _hex(each) if key in ("traceId", "spanId") else _with_hex_ids(each) for key, each in value.items()}


def _hex(value: Any) -> str:
    try:
        return base64.b64decode(value).hex()
    except (TypeError, binascii.Error):
        return str(value)
