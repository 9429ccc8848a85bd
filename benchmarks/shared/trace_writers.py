"""Writers of trace formats: conversations in the OpenAI format as the exports of other tools.

Each writer follows the shape that the tool writes: one record per model call with all messages before it, or one row
per conversation. No writer uses code of `whetstone.data.traces`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation to write."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]

    def calls(self) -> Iterator[tuple[int, Sequence[Message], Message]]:
        """Yield number, inputs and output of each model call."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        for number, place in enumerate(places):
            yield number, self.messages[:place], self.messages[place]


Writer = Callable[[Path, Sequence[Example]], None]


def write_lines(path: Path, rows: Sequence[Any]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _arguments(call: Mapping[str, Any]) -> Any:
    return json.loads(call["function"]["arguments"])


# ------------------------------------------------------------ OpenTelemetry


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": _any_value(each)} for key, each in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(each) for each in value]}}
    return {"stringValue": value}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def _otel_parts(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    parts = [{"type": "text", "content": message["content"]}] if message.get("content") else []
    calls = [
        {"type": "tool_call", "id": call["id"], "name": call["function"]["name"], "arguments": _arguments(call)}
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "parts": [*parts, *calls]}


def _genai_contents(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    answer = {**_otel_parts(output), "finish_reason": "tool_call" if output.get("tool_calls") else "stop"}
    return {
        "gen_ai.input.messages": json.dumps([_otel_parts(each) for each in inputs]),
        "gen_ai.output.messages": json.dumps([answer]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", **tool["function"]} for tool in example.tools]),
    }


def genai_attributes(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    """Return a span of the current conventions, with content in attributes."""
    return {"attributes": {"gen_ai.operation.name": "chat", **_genai_contents(example, inputs, output)}}


def genai_details(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    """Return a span of the current conventions, with content in an event."""
    event = ("gen_ai.client.inference.operation.details", _genai_contents(example, inputs, output))
    return {"attributes": {"gen_ai.operation.name": "chat"}, "events": [event]}


def genai_events(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    """Return a span of earlier conventions, with one event per message."""
    events: list[tuple[str, dict[str, Any]]] = []
    for message in inputs:
        body = {"content": message.get("content") or ""}
        body |= {"id": message["tool_call_id"]} if message["role"] == "tool" else {}
        body |= {"tool_calls": json.dumps(message["tool_calls"])} if message.get("tool_calls") else {}
        events.append((f"gen_ai.{message['role']}.message", body))
    choice = {"index": 0, "finish_reason": "stop", "message": json.dumps(output)}
    definitions = json.dumps([{"type": "function", **tool["function"]} for tool in example.tools])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.system": "openai", "gen_ai.tool.definitions": definitions}
    return {"attributes": attributes, "events": [*events, ("gen_ai.choice", choice)]}


def openinference(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    """Return a span of OpenInference."""
    values: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    for side, messages in (("input", inputs), ("output", [output])):
        for number, message in enumerate(messages):
            key = f"llm.{side}_messages.{number}.message"
            for name in ("role", "content", "tool_call_id"):
                values |= {f"{key}.{name}": message[name]} if message.get(name) else {}
            for index, call in enumerate(message.get("tool_calls", ())):
                place = f"{key}.tool_calls.{index}.tool_call"
                values[f"{place}.id"] = call["id"]
                values[f"{place}.function.name"] = call["function"]["name"]
                values[f"{place}.function.arguments"] = call["function"]["arguments"]
    for number, tool in enumerate(example.tools):
        values[f"llm.tools.{number}.tool.json_schema"] = json.dumps(tool)
    return {"attributes": values}


def openllmetry(example: Example, inputs: Sequence[Message], output: Message) -> dict[str, Any]:
    """Return a span of OpenLLMetry."""
    values: dict[str, Any] = {"llm.request.type": "chat", "gen_ai.system": "OpenAI"}
    for side, messages in (("prompt", inputs), ("completion", [output])):
        for number, message in enumerate(messages):
            key = f"gen_ai.{side}.{number}"
            for name in ("role", "content", "tool_call_id"):
                values |= {f"{key}.{name}": message[name]} if message.get(name) else {}
            for index, call in enumerate(message.get("tool_calls", ())):
                values[f"{key}.tool_calls.{index}.id"] = call["id"]
                values[f"{key}.tool_calls.{index}.name"] = call["function"]["name"]
                values[f"{key}.tool_calls.{index}.arguments"] = call["function"]["arguments"]
    values["gen_ai.completion.0.finish_reason"] = "stop"
    for number, tool in enumerate(example.tools):
        for name, value in tool["function"].items():
            text = json.dumps(value) if name == "parameters" else value
            values[f"llm.request.functions.{number}.{name}"] = text
    return {"attributes": values}


CONVENTIONS = (genai_attributes, genai_details, genai_events, openinference, openllmetry)


def write_otel(path: Path, examples: Sequence[Example]) -> None:
    """Write OTLP/JSON lines, a line per conversation, the conventions in turn; spans in the order of their ends."""
    lines = []
    for place, example in enumerate(examples):
        convention = CONVENTIONS[place % len(CONVENTIONS)]
        trace = f"{place + 1:032x}"
        spans = []
        for number, inputs, output in example.calls():
            written = convention(example, inputs, output)
            events = [{"name": name, "attributes": _attributes(values)} for name, values in written.get("events", ())]
            span = {"traceId": trace, "spanId": f"{place:08x}{number:08x}", "name": "chat", "events": events}
            spans.append({**span, "attributes": _attributes(written["attributes"])})
            for call in output.get("tool_calls", ()):
                tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call["function"]["name"]}
                spans.append({"traceId": trace, "spanId": "1" * 16, "name": "tool", "attributes": _attributes(tool)})
        agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "support"}
        spans.append({"traceId": trace, "spanId": f"{place:016x}", "name": "agent", "attributes": _attributes(agent)})
        lines.append({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "app"}, "spans": spans}]}]})
    write_lines(path, lines)


# ------------------------------------------------------------ Langfuse, LangSmith


def _observations(examples: Sequence[Example]) -> list[dict[str, Any]]:
    rows = []
    for place, example in enumerate(examples):
        common = {"traceId": f"trace-{place}", "projectId": "p", "environment": "default", "level": "DEFAULT"}
        for number, inputs, output in example.calls():
            both = {"tools": list(example.tools), "messages": list(inputs)} if example.tools else list(inputs)
            times = {"startTime": f"2026-01-01T00:00:{number:02}.000Z", "model": "m", "modelParameters": {}}
            row = {"id": f"{place}-{number}", "type": "GENERATION", "name": "chat", **common, **times}
            rows.append({**row, "input": both, "output": dict(output), "metadata": {}})
            for call in output.get("tool_calls", ()):
                tool = {
                    "id": f"{place}-{number}-{call['id']}",
                    "type": "TOOL",
                    "name": call["function"]["name"],
                    **common,
                }
                rows.append({**tool, **times, "input": _arguments(call), "output": "…", "metadata": {}})
    return rows


def write_langfuse_json(path: Path, examples: Sequence[Example]) -> None:
    """Write observations as one JSON list on one line."""
    path.write_text(json.dumps(_observations(examples), separators=(",", ":")))


def write_langfuse_lines(path: Path, examples: Sequence[Example]) -> None:
    """Write observations as JSON lines."""
    write_lines(path, _observations(examples))


def write_langfuse_csv(path: Path, examples: Sequence[Example]) -> None:
    """Write observations as CSV with all fields in quotes, nested values as JSON."""
    rows = _observations(examples)
    page = io.StringIO()
    writer = csv.writer(page, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(
        [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in row.values()]
        for row in rows
    )
    path.write_text(page.getvalue(), encoding="utf-8")


_LANGCHAIN = {"system": "System", "user": "Human", "assistant": "AI", "tool": "Tool"}


def _langchain(message: Message) -> dict[str, Any]:
    name = _LANGCHAIN[message["role"]]
    kwargs: dict[str, Any] = {"content": message.get("content") or "", "type": name.lower()}
    if message["role"] == "assistant":
        calls = message.get("tool_calls", ())
        kwargs["tool_calls"] = [
            {"name": call["function"]["name"], "args": _arguments(call), "id": call["id"], "type": "tool_call"}
            for call in calls
        ]
        kwargs["invalid_tool_calls"] = []
    if message["role"] == "tool":
        kwargs |= {"tool_call_id": message["tool_call_id"], "status": "success"}
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", f"{name}Message"],
        "kwargs": kwargs,
    }


def _runs(example: Example, place: int, *, is_openai: bool) -> Iterator[dict[str, Any]]:
    trace = f"00000000-0000-0000-0000-{place:012}"
    root = {"id": trace, "trace_id": trace, "run_type": "chain", "name": "agent", "parent_run_id": None}
    yield {**root, "inputs": {"question": "…"}, "outputs": {"answer": "…"}, "extra": {"metadata": {}}}
    for number, inputs, output in example.calls():
        run = {"id": f"{trace}-{number}", "trace_id": trace, "parent_run_id": trace, "run_type": "llm", "name": "chat"}
        if is_openai:
            sent: dict[str, Any] = {"messages": list(inputs), "model": "m", "tools": list(example.tools)}
            choice = {"index": 0, "finish_reason": "stop", "message": dict(output)}
            yield {**run, "inputs": sent, "outputs": {"id": "c", "choices": [choice]}, "extra": {"metadata": {}}}
        else:
            generation = {"text": output.get("content") or "", "type": "ChatGeneration", "message": _langchain(output)}
            extra = {"invocation_params": {"_type": "chat", "tools": list(example.tools)}, "metadata": {}}
            sent = {"messages": [[_langchain(each) for each in inputs]]}
            yield {**run, "inputs": sent, "outputs": {"generations": [[generation]]}, "extra": extra}
        for call in output.get("tool_calls", ()):
            tool = {"id": call["id"], "trace_id": trace, "parent_run_id": trace, "run_type": "tool", "extra": {}}
            yield {**tool, "name": call["function"]["name"], "inputs": _arguments(call), "outputs": {"output": "…"}}


def write_langsmith_langchain(path: Path, examples: Sequence[Example]) -> None:
    """Write runs with messages of LangChain as JSON lines."""
    write_lines(path, [run for k, each in enumerate(examples) for run in _runs(each, k, is_openai=False)])


def write_langsmith_openai(path: Path, examples: Sequence[Example]) -> None:
    """Write runs with messages of OpenAI as one indented JSON list."""
    runs = [run for k, each in enumerate(examples) for run in _runs(each, k, is_openai=True)]
    path.write_text(json.dumps(runs, indent=2), encoding="utf-8")


# ------------------------------------------------------------ conversations


def write_openai(path: Path, examples: Sequence[Example]) -> None:
    """Write conversations of OpenAI as JSON lines."""
    write_lines(path, [{"messages": list(each.messages), "tools": list(each.tools)} for each in examples])


def write_sharegpt(path: Path, examples: Sequence[Example]) -> None:
    """Write conversations of ShareGPT with tools as one JSON list."""
    rows = []
    for example in examples:
        turns = []
        for message in example.messages:
            if message.get("content") and message["role"] in ("user", "assistant"):
                turns.append({"from": "human" if message["role"] == "user" else "gpt", "value": message["content"]})
            calls = [
                {"name": each["function"]["name"], "arguments": _arguments(each)}
                for each in message.get("tool_calls", ())
            ]
            if calls:
                turns.append({"from": "function_call", "value": json.dumps(calls[0] if len(calls) == 1 else calls)})
            if message["role"] == "tool":
                turns.append({"from": "observation", "value": message["content"]})
        system = "".join(message["content"] for message in example.messages if message["role"] == "system")
        functions = [tool["function"] for tool in example.tools]
        rows.append({"conversations": turns, "system": system, "tools": json.dumps(functions)})
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")


_INSTRUCTIONS = (
    "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML tags. "
    "You may call one or more functions to assist with the user query. Here are the available tools: <tools> {tools} "
    "</tools> For each function call return a JSON object with function name and arguments within "
    '<tool_call></tool_call> XML tags as follows:\n<tool_call>\n{{"arguments": <args-dict>, "name": <function-name>}}\n'
    "</tool_call>"
)


def write_hermes(path: Path, examples: Sequence[Example]) -> None:
    """Write conversations with calls in the text, and tools in the system message, as JSON lines."""
    rows = []
    for example in examples:
        system = "".join(message["content"] for message in example.messages if message["role"] == "system")
        instructions = _INSTRUCTIONS.format(tools=json.dumps(list(example.tools)))
        turns = [{"from": "system", "value": f"{system}\n\n{instructions}" if system else instructions}]
        names: dict[str, str] = {}
        for message in example.messages:
            text = message.get("content") or ""
            if message["role"] == "user":
                turns.append({"from": "human", "value": text})
            elif message["role"] == "assistant":
                calls = message.get("tool_calls", ())
                names |= {call["id"]: call["function"]["name"] for call in calls}
                written = [{"arguments": _arguments(call), "name": call["function"]["name"]} for call in calls]
                blocks = [f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in written]
                turns.append({"from": "gpt", "value": "\n".join(filter(None, [text, *blocks]))})
            elif message["role"] == "tool":
                result = json.dumps({"name": names[message["tool_call_id"]], "content": text})
                block = f"<tool_response>\n{result}\n</tool_response>"
                if turns[-1]["from"] == "tool":
                    turns[-1]["value"] += f"\n{block}"
                else:
                    turns.append({"from": "tool", "value": block})
        rows.append({"id": example.id, "conversations": turns})
    write_lines(path, rows)


def write_csv_messages(path: Path, examples: Sequence[Example]) -> None:
    """Write one message per row, the conversations interleaved."""
    names = ("conversation_id", "turn", "role", "content", "tool_calls", "tool_call_id", "tools")
    rows: list[tuple[Any, ...]] = []
    for example in examples:
        for turn, message in enumerate(example.messages):
            calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
            tools = json.dumps(list(example.tools)) if not turn else ""
            fields = (message["role"], message.get("content") or "", calls, message.get("tool_call_id", ""), tools)
            rows.append((example.id, turn, *fields))
    rows.sort(key=lambda row: int(row[1]))
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def write_csv_conversations(path: Path, examples: Sequence[Example]) -> None:
    """Write one conversation per row, messages and tools as JSON."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "messages", "tools"))
        writer.writerows((each.id, json.dumps(list(each.messages)), json.dumps(list(each.tools))) for each in examples)


SHAPES: Mapping[str, Sequence[tuple[str, Writer]]] = {
    "OpenTelemetry": [("otel.jsonl", write_otel)],
    "Langfuse": [
        ("langfuse.json", write_langfuse_json),
        ("langfuse.jsonl", write_langfuse_lines),
        ("langfuse.csv", write_langfuse_csv),
    ],
    "LangSmith": [("langchain.jsonl", write_langsmith_langchain), ("openai_runs.json", write_langsmith_openai)],
    "ShareGPT with tools": [("sharegpt.json", write_sharegpt)],
    "Hermes": [("hermes.jsonl", write_hermes)],
    "CSV": [("messages.csv", write_csv_messages), ("conversations.csv", write_csv_conversations)],
}
"""Shape → file names and writers, which share the conversations."""
