"""Readers of nested values in a dataset row: objects, tool calls and tool declarations."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from whetstone.chat import ToolSpec
from whetstone.data.row_readers import Row
from whetstone.tasks.readers import parse_row_object

_SCHEMA = ("parameters", "inputSchema", "input_schema")
_NAMES_IN_SCHEMA = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES_IN_SCHEMA = ("default", "const", "enum", "examples")


class FieldReader:
    """Reads JSON objects in a row, and collects the keys that no reader uses. Created per row by `RowReader`.

    Args:
        row: The row; errors name its place.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.unread: dict[str, None] = {}
        """Paths of keys that nothing reads, such as `messages[].mood`."""

    def read_either(self, path: str, fields: Mapping[str, Any], one: str, other: str) -> Any:
        """Return the value of a field that has two names, such as `role` and `from`; None if neither is set.

        Raises:
            DataError: Both names are set, and their values differ.
        """
        if one in fields and other in fields and fields[one] != fields[other]:
            raise self.row.error(f"{path}: {one} and {other} differ; remove one of them")
        return fields.get(one, fields.get(other))

    def read_object(self, path: str, value: Any) -> dict[str, Any]:
        """Return the fields of an object, or of the JSON of one, without fields that are null.

        Raises:
            DataError: The value is not an object.
        """
        with suppress(ValueError, RecursionError):
            value = json.loads(value) if isinstance(value, str) else value
        if not isinstance(value, Mapping):
            raise self.row.error(f"{path}: an object is expected, got {type(value).__name__}")
        return {str(key): field for key, field in value.items() if field is not None}

    def decode(self, path: str, value: Any) -> Any:
        """Return a value, parsed from JSON if it is a text, as tables store lists and objects.

        Raises:
            DataError: The text is not JSON.
        """
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self.row.error(f"{path}: not JSON: {error}") from None

    def record_unread_keys(self, path: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
        """Add the keys of an object that are not in `known` and have a value to `unread`."""
        for name, value in fields.items():
            if name not in known and not is_empty(value):
                self.unread[f"{without_index(path)}.{name}"] = None


class CallReader:
    """Reads the tool calls and tool declarations of a row.

    Args:
        fields: Reader of the objects of the row, which also collects unread keys.
    """

    def __init__(self, fields: FieldReader) -> None:
        self._fields = fields

    def read_calls(self, path: str, value: Any) -> list[dict[str, Any]]:
        """Return tool calls in the OpenAI format, read from a list, a single call, or the JSON of either.

        Raises:
            DataError: A call has no name, or its arguments are not a JSON object.
        """
        if is_empty(value):
            return []
        value = self._fields.decode(path, value)
        if not isinstance(value, Sequence):
            return [self._read_call(path, value)]
        return [self._read_call(f"{path}[{index}]", call) for index, call in enumerate(value)]

    def _read_call(self, path: str, value: Any) -> dict[str, Any]:
        call = self._fields.read_object(path, value)
        nested = "function" in call
        function = self._fields.read_object(f"{path}.function", call["function"]) if nested else call
        if not isinstance(function.get("name"), str):
            raise self._fields.row.error(f"{path}: a tool call must have a name and arguments, got {str(value)[:80]}")
        key = "arguments" if "arguments" in function else "parameters"
        self._fields.record_unread_keys(
            path, call, ("id", "type", "index", "function", *(() if nested else ("name", key)))
        )
        if nested:
            self._fields.record_unread_keys(f"{path}.function", function, ("name", key))
        place = f"{path}.function.{key}" if nested else f"{path}.{key}"
        arguments = function.get(key, {})
        try:
            if isinstance(arguments, Mapping):
                arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            if not isinstance(arguments, str):
                raise self._fields.row.error(f"{place}: an object is expected, got {type(arguments).__name__}")
            arguments = arguments if arguments.strip() else "{}"
            parse_row_object(arguments, what="the value")
        except (TypeError, ValueError) as error:
            raise self._fields.row.error(f"{place}: {error}") from None
        function = {"name": function["name"], "arguments": arguments}
        return {"id": read_id(call.get("id")), "type": "function", "function": function}

    def read_tool(self, path: str, value: Any) -> ToolSpec:
        """Return a tool from its declaration, either bare or nested under `function` as in the OpenAI format.

        Raises:
            DataError: The declaration is not an object, or its schema is not a JSON Schema.
        """
        tool = self._fields.read_object(path, value)
        inner = self._fields.read_object(f"{path}.function", tool["function"]) if "function" in tool else tool
        key = next((key for key in _SCHEMA if key in inner), "parameters")
        schema = self._fields.decode(f"{path}.{key}", inner.get(key, {}))
        if not isinstance(schema, Mapping):
            raise self._fields.row.error(f"{path}.{key}: a JSON Schema is expected, got {type(schema).__name__}")
        self._fields.record_unread_keys(
            path, tool, ("type", "function", *(() if inner is not tool else ("name", "description", key)))
        )
        if inner is not tool:
            self._fields.record_unread_keys(f"{path}.function", inner, ("name", "description", key))
        try:
            return ToolSpec.from_openai({**inner, "parameters": _remove_nulls(schema)})
        except ValueError as error:
            raise self._fields.row.error(f"{path}: {error}") from None


def is_empty(value: Any) -> bool:
    """Return whether a value is null, or an empty text, list or object."""
    return value is None or (isinstance(value, str | Sequence | Mapping) and not value)


def read_id(value: Any) -> Any:
    """Return the id of a tool call; a number is converted to text."""
    return str(value) if isinstance(value, int) else value


def without_index(path: str) -> str:
    """Remove the indices from a path, so that `messages[2].mood` becomes `messages[].mood`."""
    return re.sub(r"\[\d+\]", "[]", path)


def _remove_nulls(schema: Any, *, are_names: bool = False) -> Any:
    """Return a JSON Schema without nulls, except those that are values (`default`, `const`, `enum`).

    Args:
        schema: The schema, or a part of one.
        are_names: Whether the keys are names, such as those of `properties`, rather than keywords.
    """
    if isinstance(schema, list):
        return [_remove_nulls(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return dict(_remove_null_items(schema, are_names))


def _remove_null_items(schema: Mapping[str, Any], are_names: bool) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if not are_names and key in _VALUES_IN_SCHEMA:
            if value is not None or key in ("default", "const"):
                yield key, value
        elif value is not None:
            yield key, _remove_nulls(value, are_names=not are_names and key in _NAMES_IN_SCHEMA)
