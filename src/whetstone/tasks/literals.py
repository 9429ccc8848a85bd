"""Parsing and formatting of Java and JavaScript values: `5L`, `new int[]{1, 2}`, `["a", 'b']`, `{key: 1}`.

In the leaderboard's Java and JavaScript categories, a call contains every value as a text in its language. A text that
is valid for its type becomes that value; any other text stays a text, such as the name of a variable.

Note:
    The leaderboard parses these texts with regular expressions, not with a grammar: any comma separates elements, and
    a long without its `L` is a text. Scores are comparable only if the parser does the same.

Source: Patil et al., Berkeley Function-Calling Leaderboard, its type converters.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import regex

_INTEGER, _DECIMAL = r"-?\d+", r"-?\d+(?:\.\d+)?"
_EXPONENT = rf"{_DECIMAL}(?:[eE][+-]?\d+)?"
_BOOLEANS = {"true": True, "false": False}
_Reader = Callable[[str], Any]
_Typed = TypeVar("_Typed", bound=Callable[..., Any])
_SECONDS = 0.2
"""Maximum time of an expression, some of which take exponential time; after it the value stays a text."""


def _limit_time(read: _Typed) -> _Typed:
    """Wrap a reader so that it returns the text itself after a timeout."""

    @functools.wraps(read)
    def limited(text: str, kind: str, elements: str = "") -> Any:
        try:
            return read(text, kind, elements)
        except TimeoutError:
            return text

    return cast("_Typed", limited)


def _finite(kind: type[int] | type[float], written: str, text: str) -> Any:
    """Return a number, or the text if the number is not finite or has too many digits."""
    try:
        value = kind(written)
    except ValueError:
        return text
    return value if isinstance(value, int) or math.isfinite(value) else text


def _number(pattern: str, kind: type[int] | type[float], suffix: str = "") -> _Reader:
    """Return a reader of numbers that match a pattern; other texts stay texts."""
    full_pattern = re.compile(rf"({pattern}){suffix}\n?")  # `$` of the original matches before a line break

    def read(text: str) -> Any:
        match = full_pattern.fullmatch(text)
        return _finite(kind, match[1], text) if match else text

    return read


def _boolean(text: str) -> Any:
    """Return `true` and `false` as booleans; other texts stay texts."""
    return _BOOLEANS.get(text, text)


def _strip_quotes(text: str) -> str:
    """Return a text without the quotes around it, if it has any."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


# ------------------------------------------------------------ Java

_JAVA: Mapping[str, _Reader] = {
    **dict.fromkeys(("byte", "short", "integer"), _number(_INTEGER, int)),
    "long": _number(_INTEGER, int, "[lL]"),
    "float": _number(_EXPONENT, float, "[fF]"),
    "double": _number(_EXPONENT, float),
    "boolean": _boolean,
}
_AS_LIST = regex.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_ADDED = regex.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", regex.DOTALL)
_NO_LIST = regex.compile(r"new\s+ArrayList<\w*>\(\)")
_ARRAY = regex.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_MAP = regex.compile(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}", regex.DOTALL)
_NO_MAP = regex.compile(r"new\s+HashMap<.*?>\s*\(\)")
_PUT = regex.compile(r'put\("(.*?)",\s*(.*?)\)')
_ADD = regex.compile(r"add\((.+?)\)")


@_limit_time
def java_value(text: str, kind: str, elements: str = "") -> Any:
    """Parse a Java text as a value of a type.

    Return the text itself if it is not valid.

    >>> java_value("5L", "long"), java_value("5", "long"), java_value("new int[]{1, 2}", "Array", "integer")
    (5, '5', [1, 2])

    Args:
        text: Java source of the value.
        kind: The type in the function's schema.
        elements: The type of a collection's elements; empty: inferred from each element.
    """
    if kind == "Array":
        match = _ARRAY.search(text, timeout=_SECONDS)
        return [_java_element(one, elements) for one in _split_elements(match[1]) if one] if match else text
    if kind == "ArrayList":
        return _java_list(text, elements)
    if kind == "HashMap":
        match = _MAP.search(text, timeout=_SECONDS)
        if match:
            return {key: _java_literal(value.strip()) for key, value in _PUT.findall(match[1], timeout=_SECONDS)}
        return {} if _NO_MAP.search(text, timeout=_SECONDS) else text
    return _JAVA[kind](text) if kind in _JAVA else text


def _java_list(text: str, elements: str) -> Any:
    """Parse the Java source of an `ArrayList`; return other texts as they are."""
    match, added = _AS_LIST.search(text, timeout=_SECONDS), _ADDED.search(text, timeout=_SECONDS)
    if match:
        written = _split_elements(match[1])
    elif added:
        written = [one.strip() for one in _ADD.findall(added[1], timeout=_SECONDS)]
    else:
        return [] if _NO_LIST.search(text, timeout=_SECONDS) else text
    cut = elements in ("char", "String")  # any character at either end
    return [one[1:-1] if cut else _java_element(one, elements) for one in written]


def _java_element(text: str, kind: str) -> Any:
    """Parse an element of a Java collection; `kind` is empty if its type is unknown."""
    return java_value(text, kind) if kind else _java_literal(text)


def _java_literal(text: str) -> Any:
    """Parse Java source of unknown type: a boolean, a string or a number."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("long", "float"):
        value = _JAVA[kind](text)
        if value is not text:
            return value
    return _plain_number(text)


# ------------------------------------------------------------ JavaScript

_SCRIPT: Mapping[str, _Reader] = {
    "String": _strip_quotes,
    "integer": _number(_INTEGER, int),
    "float": _number(_DECIMAL, float),
    "Bigint": _number(_INTEGER, int, "n"),
    "Boolean": _boolean,
}
_ROWS = regex.compile(r"\[\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\]|\bnew\s+Array\(\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\)")
_ROW = regex.compile(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)")
_INNER = regex.compile(r"\[(.*?)\]")
_OBJECT = regex.compile(r"\{(.*?)\}")
_PAIR = regex.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


@_limit_time
def javascript_value(text: str, kind: str, elements: str = "") -> Any:
    """Parse a JavaScript text as a value of a type.

    Return the text itself if it is not valid.

    >>> javascript_value("'a'", "String"), javascript_value("[1, x]", "array"), javascript_value("{a: 1}", "dict")
    ('a', [1, 'x'], {'a': 1})

    Args:
        text: JavaScript source of the value.
        kind: The type in the function's schema.
        elements: The type of an array's elements; empty: inferred from each element.
    """
    if kind == "array":
        return _script_array(text.strip(), elements)
    if kind == "dict":
        return _script_object(text.strip())
    return _SCRIPT[kind](text) if kind in _SCRIPT else text


def _script_array(code: str, elements: str) -> Any:
    """Parse a JavaScript array of one or two dimensions."""
    rows = _ROWS.match(code, timeout=_SECONDS)
    if rows:
        inner = [one.strip() for one in _INNER.findall(rows[0], timeout=_SECONDS)]
        inner[0] = inner[0].removeprefix("[")
        return [[_script_literal(each) for each in _split_elements(one)] for one in inner]
    match = _ROW.match(code, timeout=_SECONDS)
    if not match:
        return code
    written = (match[1] if match[1] is not None else match[2]).strip()
    parts = _split_elements(written) if written else []
    return [javascript_value(one, elements) if elements else _script_literal(one) for one in parts]


def _script_object(code: str) -> Any:
    """Parse the JavaScript source of an object to a dict.

    Return other texts as they are.
    """
    match = _OBJECT.match(code, timeout=_SECONDS)
    if not match:
        return code
    fields: dict[str, Any] = {}
    for key, value in _PAIR.findall(match[1], timeout=_SECONDS):
        name, value_text = key.strip().strip("'\""), value.strip()
        if value_text[:1] == "[" and value_text.endswith("]"):
            fields[name] = _script_array(value_text, "")
        elif value_text[:1] == "{" and value_text.endswith("}"):
            fields[name] = _script_object(value_text)
        else:
            fields[name] = _script_literal(value_text.strip("'\""))
    return fields


def _script_literal(text: str) -> Any:
    """Parse JavaScript source of unknown type: a boolean, a string or a number."""
    text = text.strip()
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    bare = _strip_quotes(text)
    return _plain_number(text) if bare == text else bare


def _plain_number(text: str) -> Any:
    """Parse an integer or a decimal number; other texts stay texts."""
    value = _finite(int, text, text)
    return _finite(float, text, text) if value is text else value


def _split_elements(text: str) -> list[str]:
    """Split a text at every comma, as the leaderboard does."""
    return [one.strip() for one in text.split(",")]


def format_literal(language: str, value: Any, kind: str, elements: str = "") -> str:
    """Format a value as a text that is parsed to the same value.

    A text is unchanged, and can name a variable.

    >>> format_literal("java", [1, 2], "Array", "integer"), format_literal("javascript", {"a": True}, "dict")
    ('new Object[]{1, 2}', '{"a": true}')

    Args:
        language: `java` or `javascript`.
        value: The value.
        kind: The type in the function's schema.
        elements: The type of a collection's elements; empty: unknown.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return _java_collection(value, kind, elements) if language == "java" else _script_collection(value, elements)
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    suffix = {"long": "L", "Bigint": "n"}.get(kind, "f" if (language, kind) == ("java", "float") else "")
    return f"{value}{suffix}"


def _java_collection(value: list[Any] | dict[str, Any], kind: str, elements: str) -> str:
    """Format a list or a dict as Java source: an array, an `ArrayList` or a `HashMap`."""
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {_format_element("java", each, "")});' for key, each in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
    # in an array of texts the quotes would become part of the elements
    quoted = ", ".join(
        _format_element("java", each, elements, bare=kind == "Array" and bool(elements)) for each in value
    )
    if kind == "Array":
        return f"new Object[]{{{quoted}}}"
    return f"new ArrayList<>(Arrays.asList({quoted}))" if value else "new ArrayList<>()"


def _script_collection(value: list[Any] | dict[str, Any], elements: str) -> str:
    """Format a list or a mapping as JavaScript source."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f'"{key}": {_format_element("javascript", each, "")}' for key, each in value.items()) + "}"
        )
    return "[" + ", ".join(_format_element("javascript", each, elements) for each in value) + "]"


def _format_element(language: str, value: Any, kind: str, *, bare: bool = False) -> str:
    """Format an element of a collection; a text gets quotes unless `bare`."""
    text = format_literal(language, value, kind)
    return f'"{text}"' if isinstance(value, str) and not bare else text


LANGUAGES: Mapping[str, Callable[[str, str, str], Any]] = {"java": java_value, "javascript": javascript_value}
"""Parsers of values by language: (text, type, type of elements) → value."""
