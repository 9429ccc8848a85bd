"""Messages in the attributes and events of a span, in the conventions of OpenTelemetry, OpenInference and OpenLLMetry.

gen_ai.input.messages, gen_ai.output.messages                    OpenTelemetry, JSON or structured
events gen_ai.user.message, …, gen_ai.choice                     OpenTelemetry before 1.37
llm.input_messages.0.message.role                                OpenInference
gen_ai.prompt.0.role, gen_ai.completion.0.content                OpenLLMetry before 0.50
langfuse.observation.input, langfuse.observation.output          Langfuse
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whetstone.data.traces.message_shapes import MessageShapes, decode_text, read_tools
from whetstone.data.traces.records import ImportProblem, RefusalReason, TraceError

_MAX_PARTS = 16
"""Maximum number of parts of a dotted key; a longer key is no attribute of a message."""
_ROLES_OF_EVENTS = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}  # fmt: skip
_DETAILS = "gen_ai.client.inference.operation.details"
_CONTENT_PARTS = ("text", "image_url", "image", "tool_use", "tool_result", "thinking", "input_text", "output_text")


ReadCall = tuple[list[dict[str, Any]], list[Any] | None, ImportProblem | None]
"""(messages, tools, first problem) of a model call with one of its choices."""


@dataclass(slots=True)
class CallContent:
    """Unparsed messages of a model call, as a tracing convention writes them."""

    inputs: Any = ()
    """Messages that the model read."""
    outputs: Sequence[Any] = ()
    """Choices, or messages of one turn."""
    instructions: Any = None
    """System instructions outside of the messages."""
    tools: Any = None
    """Tool declarations; None if the span has none."""
    is_one_turn: bool = False
    """Whether the outputs are messages of one turn rather than choices."""

    def read(
        self, *, is_sequence: bool = False
    ) -> Iterator[tuple[list[dict[str, Any]], list[Any] | None, ImportProblem | None]]:
        """Yield messages, tools and first problem of each choice.

        Args:
            is_sequence: Whether the outputs are always messages of one conversation.
        """
        outputs = decode_text(self.outputs)
        outputs = [outputs] if isinstance(outputs, Mapping) else outputs
        is_choice = not (self.is_one_turn or is_sequence) and all(map(_is_answer, outputs))
        for chosen in [[choice] for choice in outputs] if is_choice and len(outputs) > 1 else [outputs]:
            shapes = MessageShapes()
            messages = shapes.read(self.inputs, "input")
            answer = shapes.read(chosen, "output")
            if self.is_one_turn:
                answer = _join_turn(answer)
            if self.instructions:
                system = [{"role": "system", "parts": decode_text(self.instructions)}]
                messages = [*shapes.read(system, "instructions"), *messages]
            tools = None
            try:
                tools = read_tools(self.tools)
            except TraceError as error:
                shapes.problem = shapes.problem or error.problem
            yield [*messages, *answer], tools or shapes.tools or None, shapes.problem


@dataclass(slots=True)
class EventMessages:
    """Messages of a call that are recorded as events, one event per message."""

    inputs: list[Any] = field(default_factory=list)
    """Messages that the model read."""
    outputs: list[Any] = field(default_factory=list)
    """Choices of the model."""

    def add(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Add an event; returns whether it is a message.

        Args:
            name: Name of the event.
            fields: Body or attributes of the event.
        """
        if name in _ROLES_OF_EVENTS:
            message = {key: value for key, value in fields.items() if key in ("role", "content", "tool_calls", "parts")}
            message = {"role": _ROLES_OF_EVENTS[name], **message, "tool_call_id": fields.get("id")}
            self.inputs.append(message)
        elif name == "gen_ai.choice":
            message = decode_text(fields.get("message", fields))
            message = {"content": message} if isinstance(message, str) else message
            reason = fields.get("finish_reason")
            known = ("role", "content", "tool_calls", "parts")
            chosen = {key: decode_text(value) if key == "tool_calls" else value for key, value in message.items()}
            answer = {key: value for key, value in chosen.items() if key in known}
            self.outputs.append({"role": "assistant", **answer, "finish_reason": reason})
        elif name == "gen_ai.content.prompt":
            self.inputs += _list(decode_text(fields.get("gen_ai.prompt")))
        elif name == "gen_ai.content.completion":
            self.outputs += _list(decode_text(fields.get("gen_ai.completion")))
        else:
            return False
        return True


def find_content(
    attributes: Mapping[str, Any], events: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> CallContent | None:
    """Return the messages of a call; None if no convention has any.

    Args:
        attributes: Attributes of the span.
        events: Name and fields of the events of the span.

    Raises:
        TraceError: An attribute with messages is cut off.
    """
    tools = _find_tools(attributes)
    details = next((fields for name, fields in events if name == _DETAILS), {})
    for source in (attributes, details):
        inputs, outputs = source.get("gen_ai.input.messages"), source.get("gen_ai.output.messages")
        if inputs or outputs:
            instructions = _decode_attribute(source, "gen_ai.system_instructions")
            declared = tools or source.get("gen_ai.tool.definitions")
            inputs = _decode_attribute(source, "gen_ai.input.messages")
            outputs = _decode_attribute(source, "gen_ai.output.messages")
            return CallContent(inputs, _list(outputs), instructions, declared)
    for read in (_read_openinference, _read_openllmetry):
        content = read(attributes)
        if content is not None:
            content.tools = tools
            return content
    written = EventMessages()
    if [name for name, fields in events if written.add(name, fields)]:
        return CallContent(written.inputs, written.outputs, attributes.get("gen_ai.system_instructions"), tools)
    if attributes.get("langfuse.observation.type") == "generation":
        inputs = _decode_attribute(attributes, "langfuse.observation.input")
        outputs = _decode_attribute(attributes, "langfuse.observation.output")
        if isinstance(inputs, Mapping) and "messages" in inputs:
            inputs, tools = inputs["messages"], inputs.get("tools") or inputs.get("functions")
        if isinstance(outputs, str):
            outputs = [{"role": "assistant", "content": outputs}]
        return CallContent(inputs, _list(outputs), None, tools, is_one_turn=True) if inputs else None
    return None


def _read_openinference(attributes: Mapping[str, Any]) -> CallContent | None:
    inputs = _nested(attributes, "llm.input_messages")
    outputs = _nested(attributes, "llm.output_messages")
    if not inputs and not outputs:
        return None
    parameters = decode_text(attributes.get("llm.invocation_parameters"))
    count = parameters.get("n", 1) if isinstance(parameters, Mapping) else 1
    is_one_turn = not isinstance(count, int) or count < 2
    reason = attributes.get("llm.finish_reason")
    read = [_openinference_message(each) for each in outputs]
    if read and isinstance(read[-1], Mapping):
        read[-1] = {**read[-1], "finish_reason": reason}
    return CallContent([_openinference_message(each) for each in inputs], read, is_one_turn=is_one_turn)


def _openinference_message(value: Any) -> Any:
    message = value.get("message", value) if isinstance(value, Mapping) else value
    if not isinstance(message, Mapping):
        return message
    message = {str(key).removeprefix("message."): each for key, each in message.items()}
    fields = {key: message[key] for key in ("role", "content", "tool_call_id", "name") if message.get(key) is not None}
    parts = [_prefixed(part, "message_content") for part in _list(message.get("contents"))]
    if parts:
        fields["content"] = parts
    calls = [_prefixed(call, "tool_call") for call in _list(decode_text(message.get("tool_calls")))]
    if name := message.get("function_call_name"):
        calls.append({"function": {"name": name, "arguments": message.get("function_call_arguments_json")}})
    if calls:
        fields["tool_calls"] = calls
    return fields


def _prefixed(value: Any, prefix: str) -> Any:
    """Return the fields of `{"message_content": {…}}`, or of `{"message_content.type": …}`."""
    if not isinstance(value, Mapping):
        return value
    inner = value.get(prefix, value)
    if not isinstance(inner, Mapping):
        return inner
    fields: dict[str, Any] = {}
    for key, each in inner.items():
        name = str(key).removeprefix(f"{prefix}.")
        if name.startswith("function."):
            fields.setdefault("function", {})[name.removeprefix("function.")] = each
        else:
            fields[name] = each
    return fields


def _read_openllmetry(attributes: Mapping[str, Any]) -> CallContent | None:
    inputs = _nested(attributes, "gen_ai.prompt")
    outputs = _nested(attributes, "gen_ai.completion")
    if not inputs and not outputs:
        return None
    for message in (*inputs, *outputs):
        if isinstance(message, dict):
            message["tool_calls"] = decode_text(message.get("tool_calls"))
            message.pop("content_filter_results", None)
            parts = decode_text(message.get("content"))
            if isinstance(parts, list) and parts and all(map(_is_content_part, parts)):
                message["content"] = parts
    outputs = [{"role": "assistant", **each} if isinstance(each, dict) else each for each in outputs]
    return CallContent(inputs, outputs)


def _is_content_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _CONTENT_PARTS


def _find_tools(attributes: Mapping[str, Any]) -> Any:
    """Return the tool declarations in the attributes of a span, in any convention; None without declarations."""
    if attributes.get("gen_ai.tool.definitions"):
        return _decode_attribute(attributes, "gen_ai.tool.definitions")
    declared = [tool.get("tool", tool) for tool in _nested(attributes, "llm.tools") if isinstance(tool, Mapping)]
    if declared:
        return [decode_text(each.get("json_schema") or each.get("tool.json_schema") or each) for each in declared]
    if functions := _nested(attributes, "llm.request.functions"):
        return functions
    for name in ("llm.invocation_parameters", "input.value"):
        parameters = decode_text(attributes.get(name))
        if isinstance(parameters, Mapping) and parameters.get("tools"):
            return parameters["tools"]
    return None


def _nested(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return the elements of a list whose values are attributes with dotted keys, `prefix.0.role`."""
    if prefix in attributes:
        return _list(_decode_attribute(attributes, prefix))
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        parts = key[len(prefix) + 1 :].split(".", _MAX_PARTS) if key.startswith(f"{prefix}.") else []
        if not 0 < len(parts) <= _MAX_PARTS or not parts[0].isdigit():
            continue
        place = root
        for part in parts[:-1]:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {"": inner}
            place = inner
        place[parts[-1]] = value
    return _list(_to_lists(root)) if root else []


def _to_lists(value: Any) -> Any:
    """Return nested mappings with indices as lists."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [_to_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _to_lists(each) for key, each in value.items()}


def _decode_attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """Return the value of an attribute, decoded if it is JSON.

    Raises:
        TraceError: The attribute is truncated JSON.
    """
    value = attributes.get(name)
    decoded = decode_text(value)
    if isinstance(decoded, str) and decoded.lstrip()[:1] in ("[", "{") and name.startswith(("gen_ai.", "llm.")):
        raise TraceError(RefusalReason.TRUNCATED, f"{name} is not whole JSON; it ends with {decoded[-20:]!r}")
    return decoded


def _is_answer(choice: Any) -> bool:
    return isinstance(choice, Mapping) and choice.get("role", "assistant") in ("assistant", "model", "ai")


def _join_turn(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of the assistant in one turn as one message."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and message["role"] == joined[-1]["role"] == "assistant":
            before = joined[-1]
            before["content"] += message["content"]
            before["tool_calls"] = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
        else:
            joined.append(dict(message))
    return [{key: value for key, value in message.items() if key != "tool_calls" or value} for message in joined]


def _list(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [value]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
