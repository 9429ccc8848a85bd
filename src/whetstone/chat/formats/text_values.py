"""Argument values that a format writes as plain text between tags, typed by the JSON schema of the parameter.

`42` between tags is a number or a string: the schema decides. If string is among the declared types, the text is the
string, unless it is JSON of another declared type that is not null (`42` for `integer | string` is the number 42), and
`null` is null if null is declared. Declarations through `anyOf`, `oneOf`, `allOf`, `$ref`, lists of types, `enum`,
`const` and `nullable` count in the same way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from json import JSONDecodeError
from typing import Any
from urllib.parse import unquote

from whetstone.chat.formats.json_call import dump_json, parse_strict_json
from whetstone.python_syntax import parse_expression

_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_OTHER_NAMES = {
    "str": "string",
    "text": "string",
    "varchar": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
    "none": "null",
}
_DEEPEST = 20
_WORDS = {"true": True, "false": False, "null": None}


def declared_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the JSON types that a schema permits; None if it permits any.

    Args:
        schema: JSON Schema of one parameter.
        root: Schema that contains the definitions to which `$ref` points.
    """
    return _declared_types(schema, root, 0, {})


def _declared_types(
    schema: Any, root: Mapping[str, Any], depth: int, referred: dict[str, frozenset[str] | None]
) -> frozenset[str] | None:
    """Return the permitted types of a schema at a nesting depth.

    `referred` maps each reference to its types, and to None while they are being computed.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    constraints: list[frozenset[str] | None] = []
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in referred:
            referred[reference] = None
            referred[reference] = _declared_types(resolve_reference(reference, root), root, depth + 1, referred)
        constraints.append(referred[reference])
    if "const" in schema:
        constraints.append(frozenset({json_type(schema["const"])}))
    elif isinstance(values := schema.get("enum"), Sequence) and not isinstance(values, str) and values:
        constraints.append(frozenset(map(json_type, values)))
    if (names := schema.get("type")) is not None:
        listed = [names] if isinstance(names, str) else list(names) if isinstance(names, Sequence) else []
        named = frozenset(_OTHER_NAMES.get(str(name).lower(), str(name).lower()) for name in listed)
        constraints.append(named if named and named <= _TYPES else None)
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), Sequence) and not isinstance(options, str) and options:
            each = [_declared_types(option, root, depth + 1, referred) for option in options]
            known = [types for types in each if types is not None]
            constraints.append(frozenset[str]().union(*known) if len(known) == len(each) else None)
    if isinstance(parts := schema.get("allOf"), Sequence) and not isinstance(parts, str):
        constraints += [_declared_types(part, root, depth + 1, referred) for part in parts]
    result: frozenset[str] | None = None
    for constraint in constraints:
        if constraint is not None:
            result = constraint if result is None else _intersect(result, constraint)
    if result is not None and schema.get("nullable") is True:
        result |= {"null"}
    return result or None


def _intersect(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    both = one & other
    for first, second in ((one, other), (other, one)):
        if "integer" in first and "number" in second:
            both |= {"integer"}
    return both


def resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema at a local JSON pointer such as `#/$defs/Place`.

    The result is None if there is none.
    """
    value: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value if reference.startswith("#") else None


def member_schema(schema: Any, key: str, root: Mapping[str, Any], index: int = 0) -> Any:
    """Return the schema of a member of an object, or of an item of a list.

    The result is {} if nothing is declared.

    Args:
        schema: JSON Schema of the object or list.
        key: Key of the member; `item` also denotes an item of a list.
        root: Schema that contains the definitions to which `$ref` points.
        index: Position of the item in the list.
    """
    schemas = _combined_schemas(schema, root, 0, set())
    for one in schemas:
        properties = one.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
    for one in schemas:
        patterns = one.get("patternProperties")
        for pattern, member in patterns.items() if isinstance(patterns, Mapping) else ():
            with suppress(re.error):
                if re.search(str(pattern), key):
                    return member
        first, others = one.get("prefixItems"), one.get("items")
        if isinstance(others, list):  # tuples before draft 2020-12
            first, others = others, one.get("additionalItems")
        if key == "item" and isinstance(first, list) and index < len(first):
            return first[index]
        if key == "item" and isinstance(others, Mapping):
            return others
        if isinstance(one.get("additionalProperties"), Mapping):
            return one["additionalProperties"]
    return {}


def _combined_schemas(schema: Any, root: Mapping[str, Any], depth: int, referred: set[str]) -> list[Mapping[str, Any]]:
    """Return a schema with all schemas that it refers to (`$ref`) or combines (`anyOf`, `oneOf`, `allOf`)."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST // 2:
        return []
    schemas: list[Mapping[str, Any]] = [schema]
    if isinstance(reference := schema.get("$ref"), str) and reference not in referred:
        referred.add(reference)
        schemas += _combined_schemas(resolve_reference(reference, root), root, depth + 1, referred)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            for option in schema[key]:
                schemas += _combined_schemas(option, root, depth + 1, referred)
    return schemas


def json_type(value: Any) -> str:
    """Return the name of the JSON type of a Python value, such as `integer`."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    return "array"


def matches_type(value: Any, types: frozenset[str]) -> bool:
    """Return whether a value has one of these JSON types; an integer is also a number."""
    kind = json_type(value)
    return kind in types or (kind == "integer" and "number" in types)


def parse_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Parse the text of an argument by the types that its schema declares.

    Args:
        text: Text between the tags.
        schema: JSON Schema of the argument.
        root: Schema that contains the definitions to which `$ref` points.

    Raises:
        ValueError: If no declared type is string, and the text is JSON that a strict parser rejects, such as `NaN`,
            `1e999` or an object with a repeated key.
    """
    types = declared_types(schema, root)
    if types == frozenset({"string"}):
        return text
    try:
        value = parse_strict_json(text)
    except ValueError as error:
        is_syntax = isinstance(error, JSONDecodeError)
        if types is None or "string" in types:
            return _parse_literal(text, text) if types is None and is_syntax else text
        if not is_syntax:
            raise
        return None if "null" in types and text.strip() == "None" else _parse_literal(text, text)
    if types is not None and "string" in types and not (matches_type(value, types) and not isinstance(value, str)):
        return text
    return value


def _parse_literal(text: str, default: Any) -> Any:
    """Parse a Python list, dictionary, tuple or boolean, which some templates write.

    The result is `default` for any other text.
    """
    try:
        value = parse_python(parse_expression(text.strip()))
        dump_json(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return default
    return value if isinstance(value, bool | dict | list | tuple) else default


def parse_python(node: ast.expr) -> Any:
    """Return the value of a Python literal; `true`, `false` and `null` are accepted too.

    Raises:
        ValueError: If the expression is not a literal, a key is not a string, or a key is repeated.
    """
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id not in _WORDS:
            raise ValueError(f"{one.id} is a name")
        if isinstance(one, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in one.keys]
            if not all(isinstance(key, str) for key in keys):
                raise ValueError("a key must be a string")
            if len(set(keys)) < len(keys):
                raise ValueError("a key is repeated")

    class ConstantNames(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_WORDS[name.id])

    return ast.literal_eval(ConstantNames().visit(node))


def format_value(value: Any) -> str:
    """Return a value as the text between tags: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else dump_json(value)
