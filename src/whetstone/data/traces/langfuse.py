"""Model calls in exports of Langfuse: observations or traces as JSON, JSON lines or CSV, and traces with observations.

Observations of the type GENERATION are model calls. Traces are read only if the file has no generations of them,
because the input and output of a trace do not contain the calls between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.data.traces.json_records import read_json_records
from whetstone.data.traces.message_shapes import MessageShapes, decode_text, read_tools
from whetstone.data.traces.records import ImportProblem, Record, RefusalReason, TraceError
from whetstone.tasks.readers import InvalidRow, read_rows

_TOOLS_IN_METADATA = ("gen_ai.tool.definitions", "ai.prompt.tools", "llm.tools", "tools")


def read_langfuse(path: Path) -> Iterator[Record]:
    """Yield the records of a file.

    Raises:
        DataError: The file cannot be read at all.
    """
    rows = read_rows(path) if path.suffix in (".csv", ".tsv") else read_json_records(path)
    for row in rows:
        if isinstance(row, InvalidRow):
            yield Record(row.where, problem=ImportProblem(RefusalReason.UNREADABLE, row.reason))
            continue
        observations = decode_text(row.columns.get("observations"))
        if isinstance(observations, list) and any(isinstance(each, Mapping) for each in observations):
            trace = row.columns.get("trace")
            trace_id = str(_either(trace if isinstance(trace, Mapping) else row.columns, "id") or row.where)
            for each in observations:
                if isinstance(each, Mapping):
                    yield _read_observation(row.where, {"traceId": trace_id, **each})
        else:
            yield _read_observation(row.where, row.columns)


def _read_observation(where: str, fields: Mapping[str, Any]) -> Record:
    kind = str(fields.get("type") or "").upper()
    where = f"{where} {kind.lower() or 'trace'} {fields.get('id')}"
    trace = _either(fields, "sessionId", "session_id", "traceId", "trace_id") or (fields.get("id") if not kind else "")
    if kind not in ("", "GENERATION"):
        return Record(where, other=f"{kind.lower()} observation")
    inputs, outputs = decode_text(fields.get("input")), decode_text(fields.get("output"))
    if inputs in (None, "") and outputs in (None, ""):
        return Record(
            where, problem=ImportProblem(RefusalReason.NO_MESSAGES), group=str(trace or ""), is_fallback=not kind
        )
    shapes = MessageShapes()
    declared = None
    if isinstance(inputs, Mapping) and isinstance(decode_text(inputs.get("messages")), list):
        declared = inputs.get("tools") or inputs.get("functions")
        inputs = decode_text(inputs["messages"])
    elif isinstance(inputs, Mapping) and "input" in inputs and isinstance(inputs["input"], list):  # Responses
        declared = inputs.get("tools")
        instructions = inputs.get("instructions")
        system = [{"role": "system", "content": instructions}] if instructions else []
        inputs = [*system, *inputs["input"]]
    if isinstance(inputs, str) and kind:
        inputs = [{"role": "user", "content": inputs}]
    messages = shapes.read(inputs, "input")
    if outputs not in (None, ""):
        messages += shapes.read(read_outputs(outputs), "output")
    tools = None
    try:
        tools = read_tools(declared or _either(fields, "toolDefinitions", "tool_definitions") or _find_tools(fields))
    except TraceError as error:
        shapes.problem = shapes.problem or error.problem
    tools = tools or shapes.tools or None
    return Record(where, messages, tools, shapes.problem, str(trace or ""), not kind, unread=tuple(shapes.unread))


def read_outputs(outputs: Any) -> Any:
    """Return the messages of an output: a message, a list of messages, choices, or a text of the assistant."""
    if isinstance(outputs, str):
        return [{"role": "assistant", "content": outputs}]
    if isinstance(outputs, Mapping):
        choices = outputs.get("choices")
        if isinstance(choices, list) and choices:
            return choices[:1]
        for name in ("messages", "output"):
            if isinstance(outputs.get(name), list):
                return outputs[name]
        if isinstance(outputs.get("message"), Mapping):
            return [outputs]
        wrapped = any(name in outputs for name in ("kwargs", "data", "type", "role"))
        return [outputs if wrapped else {"role": "assistant", **outputs}]
    if isinstance(outputs, Sequence):
        return [{"role": "assistant", **each} if _lacks_role(each) else each for each in outputs]
    return outputs


def _lacks_role(value: Any) -> bool:
    return isinstance(value, Mapping) and not value.keys() & {"role", "type", "from", "kwargs", "data", "message"}


def _find_tools(fields: Mapping[str, Any]) -> Any:
    """Return the declarations of tools in the metadata or model parameters of an observation."""
    for name in ("metadata", "modelParameters", "model_parameters"):
        values = decode_text(fields.get(name))
        attributes = decode_text(values.get("attributes")) if isinstance(values, Mapping) else None
        for each in (values, attributes):
            if isinstance(each, Mapping):
                tools = next((each[key] for key in _TOOLS_IN_METADATA if each.get(key)), None)
                if tools is not None:
                    return tools
    return None


def _either(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "", {})), None)
