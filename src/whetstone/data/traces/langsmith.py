"""Model calls in exports of LangSmith: runs as JSON lines or JSON, with messages of LangChain or of OpenAI.

Runs of the type `llm` are model calls. The outermost run of a trace is read only if the file has no model calls of the
trace, and if its outputs have all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whetstone.data.traces.json_records import read_json_records
from whetstone.data.traces.langfuse import read_outputs
from whetstone.data.traces.message_shapes import MessageShapes, decode_text, read_tools
from whetstone.data.traces.records import ImportProblem, Record, RefusalReason, TraceError
from whetstone.tasks.readers import InvalidRow, read_rows

_THREADS = ("thread_id", "session_id", "conversation_id")


def read_langsmith(path: Path) -> Iterator[Record]:
    """Yield one record per run of a LangSmith export.

    Raises:
        DataError: The file cannot be read at all.
    """
    rows = read_rows(path) if path.suffix in (".csv", ".tsv") else read_json_records(path)
    for row in rows:
        if isinstance(row, InvalidRow):
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, row.reason))
            continue
        runs = row.columns.get("runs")
        for run in runs if isinstance(runs, list) else [row.columns]:
            if isinstance(run, Mapping):
                yield from _read_run(row.where, run)


def _read_run(where: str, run: Mapping[str, Any]) -> Iterator[Record]:
    kind = str(run.get("run_type") or "")
    record = f"{where} run {run.get('id')}"
    extra = _mapping(run.get("extra"))
    metadata = _mapping(extra.get("metadata"))
    group = next((str(metadata[name]) for name in _THREADS if metadata.get(name)), str(run.get("trace_id") or ""))
    inputs, outputs = decode_text(run.get("inputs")), decode_text(run.get("outputs"))
    if kind == "llm" or (not kind and "generations" in _mapping(outputs)):
        yield _read_call(record, _mapping(inputs), outputs, extra, group)
    else:
        is_root = not run.get("parent_run_id")
        messages = _mapping(outputs).get("messages")
        if not is_root or not (isinstance(messages, list) and messages):
            yield Record(record, other=f"{kind or 'untyped'} run")
        else:
            yield _read_root(record, _mapping(inputs), messages, extra, group)
    children = run.get("child_runs")
    for child in children if isinstance(children, list) else ():
        if isinstance(child, Mapping):
            yield from _read_run(where, {"trace_id": run.get("trace_id") or run.get("id"), **child})


def _read_call(where: str, inputs: Mapping[str, Any], outputs: Any, extra: Mapping[str, Any], group: str) -> Record:
    shapes = MessageShapes()
    messages: list[dict[str, Any]] = []
    written = decode_text(inputs.get("messages", inputs.get("input")))
    if written is None and inputs.get("prompts"):
        written = [{"role": "user", "content": str(prompt)} for prompt in inputs["prompts"][:1]]
    if isinstance(written, list) and written and isinstance(written[0], list):  # one list per prompt of a batch
        written = written[0]
    if isinstance(written, str):
        written = [{"role": "user", "content": written}]
    if written:
        messages += shapes.read(written, "inputs")
    chosen = _first_generation(outputs)
    if chosen not in (None, "", {}, []):
        messages += shapes.read(read_outputs(chosen), "outputs")
    tools = None
    try:
        tools = read_tools(_find_tools(inputs, extra))
    except TraceError as error:
        shapes.problem = shapes.problem or error.problem
    problem = shapes.problem or (None if messages else ImportProblem(RefusalReason.NO_MESSAGES))
    return Record(where, messages, tools, problem, group, unread=tuple(shapes.unread))


def _read_root(
    where: str, inputs: Mapping[str, Any], outputs: list[Any], extra: Mapping[str, Any], group: str
) -> Record:
    """Return the conversation of an outermost run; its outputs repeat its inputs in most programs."""
    shapes = MessageShapes()
    before = decode_text(inputs.get("messages"))
    first = MessageShapes().read(before, "inputs") if isinstance(before, list) else []
    messages = shapes.read(outputs, "outputs")
    if first and [_key(each) for each in messages[: len(first)]] != [_key(each) for each in first]:
        messages = [*first, *messages]
    tools = None
    try:
        tools = read_tools(_find_tools(inputs, extra))
    except TraceError as error:
        shapes.problem = shapes.problem or error.problem
    return Record(where, messages, tools, shapes.problem, group, is_fallback=True, unread=tuple(shapes.unread))


def _first_generation(outputs: Any) -> Any:
    """Return the message of the first generation of an output."""
    if not isinstance(outputs, Mapping):
        return outputs
    generations = outputs.get("generations")
    if isinstance(generations, list) and generations:
        first = generations[0][0] if isinstance(generations[0], list) and generations[0] else generations[0]
        if isinstance(first, Mapping):
            message = first.get("message")
            reason = _mapping(first.get("generation_info")).get("finish_reason")
            return [{"message": message, "finish_reason": reason}] if message else str(first.get("text", ""))
        return first
    if isinstance(outputs.get("output"), str | Mapping):
        return outputs["output"]
    return outputs


def _find_tools(inputs: Mapping[str, Any], extra: Mapping[str, Any]) -> Any:
    for values in (extra.get("invocation_params"), extra.get("options"), inputs, extra.get("metadata")):
        fields = _mapping(values)
        tools = fields.get("tools") or fields.get("functions")
        if tools:
            return tools
    return None


def _key(message: Mapping[str, Any]) -> tuple[Any, ...]:
    return message["role"], message.get("content"), str(message.get("tool_calls"))


def _mapping(value: Any) -> Mapping[str, Any]:
    value = decode_text(value)
    return value if isinstance(value, Mapping) else {}
