"""Validation of arguments against an untrusted JSON Schema, offline and with a time limit.

The schema of a server can refer to URLs and files, contain regular expressions with unbounded run time, and expand as
it is applied. Here nothing is fetched, regular expressions have a timeout, and validation ends after half a second.

Note:
    Regular expressions occur not only under `pattern`: `patternProperties` has them as keys, and they decide which
    properties are additional.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jsonschema
import referencing
import regex

SECONDS = 0.5
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES_BY_PATTERN = ("unevaluatedProperties",)
_MOST_CHARACTERS = 200_000
_MOST_REPEATED = 100_000
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(|\)|\{,?(?P<times>\d+)|.", re.DOTALL)
_MOST_NESTED = 64
_MOST_DEPTH = 100
"""Maximum nesting of checks, far below Python's recursion limit: at that limit, the library's Rust maps abort the
process."""
_until: ContextVar[float] = ContextVar("until")
_depth: ContextVar[int] = ContextVar("depth", default=0)


class UndecidedError(Exception):
    """Validation could not be completed; the message has the reason."""


class _Late(Exception):
    pass


def checked_schema(schema: Mapping[str, Any]) -> str:
    """Check a JSON Schema and return it as text, for `find_schema_errors`.

    Raises:
        ValueError: If it is not a schema, is too large, refers to another document, or may take unbounded time.
    """
    if not isinstance(schema, Mapping):
        raise ValueError(f"it must be a mapping, got {type(schema).__name__}")
    try:
        text = json.dumps(schema)
        for key, value in _all(schema):
            if key in _REFERENCES and not str(value).startswith("#"):
                raise ValueError(f"{key} {str(value)[:200]!r} refers to another document, and nothing is fetched")
            if key in _NAMES_BY_PATTERN and "patternProperties" in text:
                raise ValueError(f"{key} together with patternProperties is not supported")
            for pattern in _patterns(key, value):
                if _size(pattern) > _MOST_REPEATED:
                    raise ValueError(f"the pattern {pattern[:80]!r} repeats without bounds")
                regex.compile(pattern)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"it has {len(text)} characters, more than {_MOST_CHARACTERS}")
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except ValueError:
        raise
    except Exception as error:  # a third-party schema in a third-party library
        message = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
        raise ValueError(f"it is not a JSON Schema: {message[:200]}") from None
    return text


def find_schema_errors(schema: str, values: Any, *, most: int = 3) -> list[str]:
    """Return the validation errors of a value, each with its path.

    The result is empty if the value is valid.

    Args:
        schema: Text that `checked_schema` returned.
        values: Value to validate.
        most: Maximum number of errors.

    Raises:
        UndecidedError: If validation fails, or exceeds half a second.
    """
    token = _until.set(time.monotonic() + SECONDS)
    try:
        errors = sorted(_validator(schema).iter_errors(values), key=lambda error: list(map(str, error.path)))
        return [f"{'.'.join(map(str, e.path)) or 'arguments'}: {e.message[:200]}" for e in errors[:most]]
    except (RecursionError, TimeoutError, _Late):
        raise UndecidedError(f"its schema is not done with them in {SECONDS:g} s") from None
    except Exception as error:
        raise UndecidedError(f"its schema cannot be applied: {str(error)[:200]}") from None
    finally:
        _until.reset(token)
        _depth.set(0)


@functools.lru_cache(maxsize=4096)
def _validator(schema: str) -> Any:
    parsed = json.loads(schema)
    return _bound_validator(jsonschema.validators.validator_for(parsed))(parsed, registry=referencing.Registry())


@functools.cache
def _bound_validator(kind: Any) -> Any:
    """Return a validator class that checks the time limit before every keyword."""
    checks = {
        **kind.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return jsonschema.validators.extend(kind, {name: _on_the_clock(check) for name, check in checks.items()})


def _on_the_clock(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _remaining()
        if _depth.get() >= _MOST_DEPTH:
            raise _Late
        _depth.set(_depth.get() + 1)
        try:
            yield from check(validator, value, instance, schema) or ()
        finally:
            _depth.set(_depth.get() - 1)

    return checked


def _remaining() -> float:
    left = _until.get() - time.monotonic()
    if left <= 0:
        raise _Late
    return left


def _matches(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, timeout=_remaining()) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, below in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    others = [name for name in instance if name not in schema.get("properties", {})]
    others = [name for name in others if not any(_matches(pattern, name) for pattern in patterns)]
    if validator.is_type(below, "object"):
        for name in others:
            yield from validator.descend(instance[name], below, path=name)
    elif not below and others:
        yield jsonschema.ValidationError(f"there is no argument {', '.join(sorted(others))}")


def _patterns(key: str, value: Any) -> Iterator[str]:
    if key == "pattern" and isinstance(value, str):
        yield value
    if key == "patternProperties" and isinstance(value, Mapping):
        yield from map(str, value)


def _size(pattern: str) -> int:
    """Return the size of a regular expression after its repetitions are expanded, as the engine expands them."""
    open_groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if token[0] == "(":
            open_groups.append(0)
        elif token[0] == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] += last
        elif token["times"]:
            more = last * max(int(token["times"][:9]) - 1, 0)
            open_groups[-1], last = open_groups[-1] + more, last + more
        else:
            last = 1
            open_groups[-1] += 1
    return sum(open_groups)


def _all(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a schema with its value, at all levels.

    Raises:
        ValueError: If the schema is nested too deeply.
    """
    left = [(value, 0)]
    while left:
        inner, depth = left.pop()
        if depth > _MOST_NESTED:
            raise ValueError(f"it is nested more than {_MOST_NESTED} deep")
        if isinstance(inner, Mapping):
            yield from inner.items()
            left += [(one, depth + 1) for one in inner.values()]
        elif isinstance(inner, list | tuple):
            left += [(one, depth + 1) for one in inner]
